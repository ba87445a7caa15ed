"""One face for both checkpoint formats. Imports no torch until a tensor is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.load.config_view import DictConfigView, Source
from inferd.load.errors import LoadError
from inferd.plugin.types import TensorMeta

if TYPE_CHECKING:
    import torch

    from inferd.load.vocab import TokenTable

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Checkpoint(ABC):
    """A model on disk, opened and checked but not read."""

    source: Source
    path: Path
    architecture_name: str
    """`llama`, `qwen2`... as the checkpoint declares it."""
    nbytes: int
    """Bytes of all tensors together."""

    @abstractmethod
    def config(self) -> DictConfigView:
        """Return the model's own configuration."""

    @abstractmethod
    def tensors(self) -> Mapping[str, TensorMeta]:
        """Return every tensor of the checkpoint by name."""

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """Map one tensor: typed and shaped from safetensors, flat uint8 bytes from GGUF.

        Raises LoadError for an unknown name or a file that changed under us.
        """

    @abstractmethod
    def token_table(self) -> TokenTable:
        """Read what token ids stand for. Raises LoadError."""

    def close(self) -> None:
        """Let go of the files; tensors already read stay valid."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, or a folder in Hugging Face form or with one GGUF file. Raises LoadError."""
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise LoadError(f"{path}: no such file or folder")
    if path.suffix == ".safetensors":
        raise LoadError(f"{path}: name the folder that holds it together with its config.json")
    if any(path.match(pattern) for pattern in _PICKLES):
        raise LoadError(f"{path}: pickled weights can run code and are not read; convert them to safetensors")
    from inferd.load.gguf_checkpoint import GgufCheckpoint

    return GgufCheckpoint(path)


def _open_folder(path: Path) -> Checkpoint:
    file = gguf_in(path)
    if file is not None:
        return open_checkpoint(file)
    from inferd.load.hf import HfCheckpoint

    return HfCheckpoint(path)


def gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file that a folder stands for; None where it is one in Hugging Face form. Raises LoadError."""
    files = sorted(folder.glob("*.gguf"))
    if (folder / "config.json").is_file() or not files:
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise LoadError(f"{folder}: holds {len(files)} GGUF files; name one of them: {names}")
    return files[0]
