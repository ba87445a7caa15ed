"""The model store: one folder a model, each with a `model.json` that says what it is.

    MODELS/NAME/model.json          source, licence, sha256 and size of every file
    MODELS/NAME/...                 the files, as they came
    MODELS/.incoming/NAME/          a pull that is not finished; never listed
    MODELS/.locks/NAME              held while NAME is pulled or removed

A model appears and disappears by one rename, so what is listed is whole.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import msgspec

from inferd.load.errors import LoadError
from inferd.load.pull_catalogue import CATALOGUE
from inferd.load.store_files import FileLock, sync_folder
from inferd_client.protocol import ModelInfo

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MANIFEST = "model.json"


class StoredFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `model.json`."""

    name: str
    source: str
    entry: str
    """What is loaded, relative to the folder: a GGUF file, or `.` for a Hugging Face directory."""
    files: tuple[StoredFile, ...]
    license: str = ""
    architecture: str = ""
    quantization: str = ""
    context: int | None = None
    revision: str = ""
    """Commit of the repository it came from, where there is one."""
    pulled: str = ""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


class Store:
    """The models in one folder. Everything raises LoadError with a remedy."""

    def __init__(self, models: Path) -> None:
        self.models = models

    def resolve(self, name_or_path: str) -> Path:
        """Return the file or directory to load: a stored name first, else a path.

        Only what holds a `/` or ends in `.gguf` is taken for a path, so that a name means the same
        in every working directory.
        """
        if NAME.fullmatch(name_or_path) and self.folder(name_or_path).is_dir():
            return self._entry(self.manifest(name_or_path))
        if "/" in name_or_path or name_or_path.endswith(".gguf"):
            return _outside(Path(name_or_path).expanduser())
        raise LoadError(self._unknown(name_or_path))

    def remove(self, name: str) -> None:
        """Delete a model."""
        with self.lock(name):
            if not self.folder(name).is_dir():
                raise LoadError(self._unknown(name))
            self.discard(name)

    def folder(self, name: str) -> Path:
        """Return where a model of this name lies or would lie."""
        if not NAME.fullmatch(name):
            raise LoadError(f"{name!r} is not a model name: letters, digits, dots, dashes and underscores")
        return self.models / name

    def manifest(self, name: str) -> Manifest:
        """Read the `model.json` of a model that is there."""
        path = self.folder(name) / MANIFEST
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise LoadError(f"{path}: {error}; remove {path.parent} and pull the model again") from None

    def find(self, name: str) -> Manifest | None:
        """Return the manifest of a model that is there whole; None when it is absent."""
        if not self.folder(name).is_dir():
            return None
        manifest = self.manifest(name)
        self._entry(manifest)
        return manifest

    def incoming(self, name: str) -> Path:
        """Return the folder in which a pull gathers its files, on the same filesystem."""
        return self.models / ".incoming" / self.folder(name).name

    @contextmanager
    def lock(self, name: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the one lock of a name, over all processes; `on_wait` as in FileLock."""
        self.folder(name)
        with FileLock(self.models / ".locks" / name, on_wait):
            yield

    def admit(self, manifest: Manifest) -> Path:
        """Move a finished pull into the store, over an older model of the name; under the lock."""
        incoming, target = self.incoming(manifest.name), self.folder(manifest.name)
        body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        with (incoming / MANIFEST).open("wb") as file:
            file.write(body + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(incoming)
        if target.exists():
            self.discard(manifest.name)
        incoming.rename(target)
        sync_folder(self.models)
        return self._entry(manifest)

    def discard(self, name: str) -> None:
        """Take a model out by one rename, then delete it; under the lock."""
        trash = self.models / ".incoming" / f"{name}.removed"
        trash.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(trash, ignore_errors=True)
        try:
            self.folder(name).rename(trash)
        except OSError as error:
            raise LoadError(f"cannot remove {self.folder(name)}: {error.strerror}") from None
        sync_folder(self.models)
        shutil.rmtree(trash, ignore_errors=True)

    def names(self) -> tuple[str, ...]:
        """Return the names of all models, sorted."""
        if not self.models.is_dir():
            return ()
        return tuple(sorted(f.name for f in self.models.iterdir() if NAME.fullmatch(f.name) and f.is_dir()))

    def _entry(self, manifest: Manifest) -> Path:
        """Return what to load, once the sizes of all files are as recorded."""
        folder = self.folder(manifest.name)
        for file in manifest.files:
            path = folder / file.path
            size = path.stat().st_size if path.is_file() else 0
            if size != file.size:
                raise LoadError(
                    f"{path} has {size} bytes instead of {file.size}; remove {folder} and run: inferd pull "
                    + (manifest.name if manifest.name in CATALOGUE else manifest.source)
                )
        return folder / manifest.entry if manifest.entry != "." else folder

    def _unknown(self, name: str) -> str:
        if name in CATALOGUE:
            return f"model {name} is not here yet; run: inferd pull {name}"
        near = get_close_matches(name, {*self.names(), *CATALOGUE}, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(self.names()) or "none"
        return f"no model named {name!r} in {self.models} (there: {known}){hint}; see: inferd pull --help"

    def list(self) -> list[ModelInfo]:
        """Return every model, damaged ones with what is wrong."""
        return [self._info(name) for name in self.names()]

    def _info(self, name: str) -> ModelInfo:
        try:
            manifest = self.manifest(name)
            path = self._entry(manifest)
        except LoadError as error:
            return ModelInfo(name=name, path=str(self.folder(name)), bytes=0, problem=str(error))
        return ModelInfo(
            name=name,
            path=str(path),
            bytes=manifest.bytes,
            architecture=manifest.architecture,
            quantization=manifest.quantization,
            context=manifest.context,
        )


def _outside(path: Path) -> Path:
    """Check a path that is not in the store."""
    if path.is_file():
        return path.absolute()
    if (path / "config.json").is_file():
        return path.absolute()
    if path.is_dir():
        raise LoadError(f"{path} is a folder without config.json; name a GGUF file or a Hugging Face model folder")
    raise LoadError(f"{path}: no such file or folder")
