"""A GGUF file as a checkpoint."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.load.checkpoint import Checkpoint
from inferd.load.config_view import DictConfigView
from inferd.load.errors import LoadError
from inferd.load.gguf import GgufFile
from inferd.load.vocab_gguf import table_from
from inferd.plugin.types import TensorMeta

if TYPE_CHECKING:
    import torch

    from inferd.load.vocab import TokenTable

_MAX_SPEC_FLOATS = 1 << 16


class GgufCheckpoint(Checkpoint):
    """Metadata keys keep their full names (`llama.block_count`)."""

    source = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        self._tensors = {t.name: TensorMeta(t.name, t.shape, t.type) for t in self._file.tensors.values()}
        self.nbytes = sum(t.nbytes for t in self._file.tensors.values())
        config = self.config()
        self.architecture_name = config.str("general.architecture")
        if config.int("split.count", 1) > 1:
            raise LoadError(
                f"{path}: split.count: one part of a split model; merge the parts first (gguf-split --merge)"
            )

    def config(self) -> DictConfigView:
        return DictConfigView(
            self._file.metadata,
            source="gguf",
            where=str(self.path),
            tensors=self._tensors,
            read_floats=self._floats,
        )

    def tensors(self) -> Mapping[str, TensorMeta]:
        return self._tensors

    def read(self, name: str) -> torch.Tensor:
        import torch

        return torch.frombuffer(self._bytes(name), dtype=torch.uint8)

    def token_table(self) -> TokenTable:
        return table_from(self._file.metadata, self.path)

    def _bytes(self, name: str) -> memoryview:
        if name not in self._file.tensors:
            raise LoadError(f"{self.path}: tensor {name} is missing")
        return self._file.bytes_of(self._file.tensors[name])

    def _floats(self, name: str) -> tuple[float, ...]:
        data = self._bytes(name)
        if self._tensors[name].dtype != "F32" or len(data) > _MAX_SPEC_FLOATS * 4:
            raise LoadError(f"{self.path}: tensor {name} must hold at most {_MAX_SPEC_FLOATS} F32 values")
        return struct.unpack(f"<{len(data) // 4}f", data)
