"""Fetch a model from a Hugging Face hub: every file of one commit, resumed where a try broke off."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from inferd.load.errors import LoadError, NotFound
from inferd.load.pull import Fetched, Progress
from inferd.load.pull_select import select_files
from inferd.load.pull_source import HubSource
from inferd.load.store import StoredFile
from inferd.load.store_files import check_space, digest_file


class Remote(NamedTuple):
    name: str
    size: int
    sha256: str | None


class Commit(NamedTuple):
    revision: str
    license: str
    files: dict[str, Remote]


def fetch_hub(source: HubSource, incoming: Path, report: Progress, endpoint: str | None) -> Fetched:
    """Download into `incoming`. The endpoint is HF_ENDPOINT's unless given. Raises LoadError."""
    commit = _look_up(source, endpoint)
    entry, names = select_files(commit.files, source.file, str(source))
    total = sum(commit.files[name].size for name in names)
    check_space(incoming, total - sum(f.stat().st_size for f in incoming.rglob("*") if f.is_file()))
    done = 0
    stored: list[StoredFile] = []
    for name in names:
        remote = commit.files[name]
        _download(
            source, remote, commit.revision, incoming, _offset(report, f"downloading {name}", done, total), endpoint
        )
        stored.append(_check(incoming, remote, _offset(report, f"checking {name}", done, total)))
        done += stored[-1].size
    _tidy(incoming, names)
    return Fetched(entry, tuple(stored), commit.license, commit.revision)


def _look_up(source: HubSource, endpoint: str | None) -> Commit:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint)
    info = _guarded(source, lambda: api.model_info(source.repo, revision=source.revision, files_metadata=True))
    if not info.sha:
        raise LoadError(f"{source}: the hub names no commit")
    files = {
        f.rfilename: Remote(f.rfilename, f.size or 0, f.lfs.sha256 if f.lfs else None) for f in info.siblings or ()
    }
    card = info.card_data
    return Commit(info.sha, str(card.get("license") or "") if card else "", files)


def _download(
    source: HubSource, remote: Remote, revision: str, folder: Path, report: Callable[[int], None], endpoint: str | None
) -> None:
    from huggingface_hub import hf_hub_download

    def download() -> str:
        return hf_hub_download(
            source.repo,
            remote.name,
            revision=revision,
            local_dir=folder,
            endpoint=endpoint,
            tqdm_class=_bar(report),
        )

    _guarded(source, download)


def _check(folder: Path, remote: Remote, report: Callable[[int], None]) -> StoredFile:
    path = folder / remote.name
    found = digest_file(path, report)
    if found.size != remote.size or (remote.sha256 is not None and found.sha256 != remote.sha256):
        path.unlink()
        raise LoadError(
            f"{remote.name}: the download differs from what the hub lists ({found.size} of {remote.size} bytes, "
            f"sha256 {found.sha256}); pull again"
        )
    return StoredFile(remote.name, found.size, found.sha256)


def _guarded(source: HubSource, call: Callable[[], Any]) -> Any:
    """Say in one line what the hub library raises."""
    from huggingface_hub import errors

    try:
        return call()
    except errors.GatedRepoError:
        raise LoadError(f"{source}: access is restricted; accept its terms on the hub and run: hf auth login") from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"{source}: there is no revision {source.revision}") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(f"{source}: no such repository, or it is private (then run: hf auth login)") from None
    except errors.EntryNotFoundError as error:
        raise NotFound(f"{source}: no such file: {_first_line(error)}") from None
    except Exception as error:  # noqa: BLE001 - its HTTP stack has many more
        raise LoadError(f"{source}: {type(error).__name__}: {_first_line(error)}; pull again to go on") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _offset(report: Progress, phase: str, before: int, total: int) -> Callable[[int], None]:
    return lambda done: report(phase, before + done, total)


def _bar(report: Callable[[int], None]) -> type[Any]:
    """A progress bar class that shows nothing and reports bytes."""
    from huggingface_hub.utils import tqdm

    class Reporting(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": False, "file": io.StringIO()})
            report(int(self.n))

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            report(int(self.n))
            return shown

    return Reporting


def _tidy(folder: Path, names: list[str]) -> None:
    """Drop the library's notes and files of an earlier, different try."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and str(path.relative_to(folder)) not in names:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    shutil.rmtree(folder / ".cache", ignore_errors=True)
