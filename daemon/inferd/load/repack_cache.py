"""The cache of repacked weights: found by content, layout and instruction set; bounded; never needed.

    CACHE/repacked/DIGEST-ISA-LAYOUT-REST     one file a model and way of computing it (`repack_file`)
    CACHE/repacked/paths/*.json               digests of model files by path (`repack_digest`)

Whatever goes wrong costs the time of a load without a cache, and one line in the log.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from inferd.load.repack_digest import Digests
from inferd.load.repack_file import Allocate, Matrices, RepackError, StoredMatrix, anonymous, read, size, write
from inferd.load.store_files import DISK_RESERVE

log = logging.getLogger(__name__)
SUFFIX = ".repacked"


class Purpose(NamedTuple):
    """What repacked weights are made for, besides the content of the model."""

    isa: str
    """Instruction-set tier."""
    layout: str
    """Version of the layout; others for this tier are of no more use."""
    rest: str
    """All else that they depend on, as text."""

    @property
    def suffix(self) -> str:
        return f"{self.isa}-{_short(self.layout, 12)}-{_short(self.rest, 16)}{SUFFIX}"


class RepackCache:
    """The files in one folder, at most `limit` bytes of them; the ones used last stay."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder / "repacked"
        self.limit = limit
        self._digests = Digests(self.folder / "paths")
        self._saving: threading.Thread | None = None

    def find(
        self, model: Path, purpose: Purpose, allocate: Allocate = anonymous
    ) -> dict[str, tuple[StoredMatrix, ...]] | None:
        """Return the weights of a model, in memory from `allocate`; None when they have to be made."""
        if not any(self.folder.glob(f"*-{purpose.suffix}")):
            return None  # the digest of a large file takes a while
        path = self.folder
        try:
            path = self._path(model, purpose)
            found = read(path, path.name, allocate)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, RepackError, ValueError) as error:
            log.warning("repacked weights are made anew: %s: %s", path, error)
            return None
        return found

    def save_later(self, model: Path, purpose: Purpose, matrices: Matrices) -> None:
        """Write them while the model already serves."""
        self._saving = threading.Thread(
            target=self.save, args=(model, purpose, matrices), name="repacked weights", daemon=True
        )
        self._saving.start()

    def wait(self) -> None:
        """Return once what `save_later` was given is written."""
        if self._saving is not None:
            self._saving.join()

    def save(self, model: Path, purpose: Purpose, matrices: Matrices) -> None:
        """Keep the weights of a model, if there is room for them."""
        wanted = size(matrices)
        if wanted > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            if wanted + DISK_RESERVE > free:
                raise OSError(f"{wanted / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free")
            path = self._path(model, purpose)
            write(path, path.name, matrices)
            self._prune(path, purpose)
        except (OSError, ValueError) as error:
            log.warning("repacked weights stay in memory only: %s: %s", self.folder, error)

    def size_of(self, model: Path) -> int:
        """Return the bytes kept for a model; 0 where its content is not known."""
        return sum(path.stat().st_size for path in self._of(model))

    def remove(self, model: Path) -> int:
        """Delete what is kept for a model that is still there; return how many bytes that were."""
        size = self.size_of(model)
        for path in self._of(model):
            path.unlink(missing_ok=True)
        self._digests.forget(model)
        return size

    def _of(self, model: Path) -> Iterator[Path]:
        digest = self._digests.known(model)
        return self.folder.glob(f"{_short(digest, 20)}-*{SUFFIX}") if digest else iter(())

    def _path(self, model: Path, purpose: Purpose) -> Path:
        return self.folder / f"{_short(self._digests.of(model), 20)}-{purpose.suffix}"

    def _prune(self, kept: Path, purpose: Purpose) -> None:
        """Delete what nobody will ask for again, then what was not used for longest."""
        content = kept.name.split("-")[0]
        for path in self.folder.glob(f"{content}-{purpose.isa}-*{SUFFIX}"):
            if path.name.split("-")[2] != kept.name.split("-")[2]:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f".*{SUFFIX}.*"):
            if not Path(f"/proc/{path.suffix[1:]}").exists():
                path.unlink(missing_ok=True)
        files = sorted(((p, p.stat()) for p in self.folder.glob(f"*{SUFFIX}")), key=lambda f: f[1].st_mtime)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            if total > self.limit and path != kept:
                path.unlink(missing_ok=True)
                total -= status.st_size


def _short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
