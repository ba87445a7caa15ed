"""Digests of models' weight files, computed once a file and remembered beside the repacked weights."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec


class _File(msgspec.Struct, frozen=True):
    """A file as it was when it was read; the change time cannot be set back."""

    path: str
    size: int
    device: int
    inode: int
    changed_ns: int


class _Record(msgspec.Struct, frozen=True):
    files: tuple[_File, ...]
    digest: str


class Digests:
    """Records in one folder, a small JSON file a model path. They save time and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(self, model: Path) -> str | None:
        """Return the digest of a model that has not changed since it was read; None = unknown."""
        try:
            record = msgspec.json.decode(self._record(model).read_bytes(), type=_Record)
            return record.digest if record.files == _files(model) else None
        except (OSError, msgspec.MsgspecError):
            return None

    def of(self, model: Path) -> str:
        """Return the digest of a model's weight files, reading them where need be. Raises OSError."""
        known = self.known(model)
        if known is not None:
            return known
        files = _files(model)
        parts = [f"{Path(file.path).name} {_sha256(file.path)}" for file in files]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        with suppress(OSError):
            self._remember(model, _Record(files, digest))
        return digest

    def forget(self, model: Path) -> None:
        self._record(model).unlink(missing_ok=True)

    def _remember(self, model: Path, record: _Record) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._record(model)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(record))
        partial.rename(path)

    def _record(self, model: Path) -> Path:
        return self._folder / f"{hashlib.sha256(str(model.absolute()).encode()).hexdigest()[:24]}.json"


def _files(model: Path) -> tuple[_File, ...]:
    """Return the weight files of a GGUF file or a model folder."""
    weights = [model] if model.is_file() else sorted([*model.glob("*.safetensors"), *model.glob("*.gguf")])
    stats = [(path, path.stat()) for path in weights]
    return tuple(_File(str(p), s.st_size, s.st_dev, s.st_ino, s.st_ctime_ns) for p, s in stats)


def _sha256(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
