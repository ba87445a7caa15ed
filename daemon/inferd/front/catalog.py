"""Model names to files: the store and open paths for the daemon, made-up names for the fake one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from inferd_client.protocol import ModelInfo

if TYPE_CHECKING:
    from inferd.load.store import Store


class Found(NamedTuple):
    """A model that can be loaded."""

    name: str
    path: str
    bytes: int
    """Of its weight files."""


class Catalog(Protocol):
    """What models there are."""

    def resolve(self, name: str) -> Found:
        """Return the model of a name or path. Raises ValueError with the remedy."""
        ...

    def list(self) -> list[ModelInfo]:
        """Return what could be loaded by name."""
        ...


class StoreCatalog:
    """The models of the store, and any GGUF file or Hugging Face directory by its path.

    What was opened by its path once is known by the path's last part from then on; `paths` names some
    from the start (`[models.NAME] path`).
    """

    def __init__(self, store: Store, paths: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._configured = dict(paths or {})
        self._paths = dict(self._configured)

    def resolve(self, name: str) -> Found:
        path = self._store.resolve(self._paths.get(name, name)).absolute()
        short = _short(name, path)
        if short != name:
            self._paths[short] = str(path)
        return Found(short, str(path), weight_file_bytes(path))

    def list(self) -> list[ModelInfo]:
        return self._store.list() + [_described(name, Path(path)) for name, path in self._configured.items()]


class ScriptedCatalog:
    """Names without files, all on the byte vocabulary."""

    def __init__(self, names: Iterable[str], size: int = 0) -> None:
        self._names = tuple(names)
        self._size = size

    def resolve(self, name: str) -> Found:
        if name not in self._names:
            raise ValueError(f"no model named {name}; there are: {', '.join(self._names)}")
        return Found(name, "bytes:", self._size)

    def list(self) -> list[ModelInfo]:
        return [ModelInfo(name=name, path="bytes:", bytes=self._size) for name in self._names]


def weight_file_bytes(path: Path) -> int:
    """Add up the weight files of a GGUF file or a Hugging Face directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(shard.stat().st_size for shard in path.glob("*.safetensors"))


def _described(name: str, path: Path) -> ModelInfo:
    if not path.exists():
        return ModelInfo(name=name, path=str(path), bytes=0, problem=f"models.{name}.path: no such file or folder")
    return ModelInfo(name=name, path=str(path), bytes=weight_file_bytes(path))


def _short(name: str, path: Path) -> str:
    """A store name stays; a path is called by its last part."""
    if "/" not in name and not name.endswith(".gguf"):
        return name
    return path.stem if path.suffix == ".gguf" else path.name
