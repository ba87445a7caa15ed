"""Files that must arrive whole: checked copies, locks, and flushing to the disk."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from inferd.load.errors import LoadError

CHUNK = 1 << 20
DISK_RESERVE = 64 << 20
"""Left free on the disk by a pull."""


class Copied(NamedTuple):
    size: int
    sha256: str


def copy_checked(source: IO[bytes], target: Path, size: int, report: Callable[[int], None]) -> Copied:
    """Write exactly `size` bytes of a stream to a new file and flush it to the disk. Raises LoadError.

    `report` is given the bytes so far.
    """
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as out:
        while chunk := source.read(min(CHUNK, size - done + 1)):
            done += len(chunk)
            if done > size:
                raise LoadError(f"{target.name}: longer than the {size} bytes declared")
            out.write(chunk)
            digest.update(chunk)
            report(done)
        out.flush()
        os.fsync(out.fileno())
    if done != size:
        raise LoadError(f"{target.name}: ends after {done} of {size} bytes")
    return Copied(done, digest.hexdigest())


def digest_file(path: Path, report: Callable[[int], None]) -> Copied:
    """Return size and sha256 of a file, and flush it to the disk."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report(done)
        os.fsync(file.fileno())
    return Copied(done, digest.hexdigest())


def check_space(folder: Path, size: int) -> None:
    """Refuse what would fill the disk. Raises LoadError with the numbers."""
    free = shutil.disk_usage(folder).free
    if size + DISK_RESERVE > free:
        raise LoadError(f"{folder}: {size / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free")


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileLock:
    """An exclusive lock that ends with the process.

    Where it is taken, `on_wait` is called once and the lock waited for; without one it is a LoadError.
    """

    def __init__(self, path: Path, on_wait: Callable[[], None] | None = None) -> None:
        self._path = path
        self._on_wait = on_wait
        self._handle = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def _take(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._on_wait is None:
                raise LoadError(f"{self._path.name} is being pulled or removed by another process") from None
            self._on_wait()
            fcntl.flock(self._handle, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
