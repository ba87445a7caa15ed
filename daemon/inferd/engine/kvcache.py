"""The KV pools: tensors for the layouts an attention backend chose."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from inferd.plugin.types import KVFormat, KVLayout, KVPlane, LayerKV

DTYPES: dict[KVFormat, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


def allocate(layouts: Sequence[KVLayout], num_blocks: int, device: str, layers: Iterable[int]) -> dict[int, LayerKV]:
    """Return the cache of each of `layers` by layer number: planes [num_blocks, block_size, heads, width]."""
    held = set(layers)
    return {
        layer: _layer(layout, num_blocks, device)
        for layout in layouts
        for layer in layout.group.layers
        if layer in held
    }


def nbytes(cache: dict[int, LayerKV]) -> int:
    return sum(plane.nbytes for layer in cache.values() for plane in layer.values())


def _layer(layout: KVLayout, num_blocks: int, device: str) -> LayerKV:
    def plane(p: KVPlane, dtype: torch.dtype) -> torch.Tensor:
        shape = (num_blocks, layout.block_size, p.heads, p.width)
        return _host_zeros(shape, dtype) if device == "cpu" else torch.zeros(shape, dtype=dtype, device=device)

    planes = {p.name: plane(p, DTYPES[layout.format]) for p in layout.group.planes}
    return planes | {p.name: plane(p, torch.float32) for p in layout.scales}


def _host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take memory only once they are written: most of a pool may never be used."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
