"""The KV pools: tensors for the layouts an attention backend chose."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from inferd_kernels.cpu.pages import ALIGNMENT, large_pages

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
    cache: dict[int, LayerKV] = {}
    for layout in layouts:
        mine = [layer for layer in layout.group.layers if layer in held]
        if layout.by_block:
            assert device == "cpu", f"blocks of all layers in one piece on {device}"
            cache |= _by_block(layout, num_blocks, mine)
        else:
            cache |= {layer: _by_plane(layout, num_blocks, device) for layer in mine}
    return cache


def nbytes(cache: dict[int, LayerKV]) -> int:
    return sum(plane.nbytes for layer in cache.values() for plane in layer.values())


def _by_plane(layout: KVLayout, num_blocks: int, device: str) -> LayerKV:
    def plane(p: KVPlane, dtype: torch.dtype) -> torch.Tensor:
        shape = (num_blocks, layout.block_size, p.heads, p.width)
        return _host_zeros(shape, dtype) if device == "cpu" else torch.zeros(shape, dtype=dtype, device=device)

    planes = {p.name: plane(p, DTYPES[layout.format]) for p in layout.group.planes}
    return planes | {p.name: plane(p, torch.float32) for p in layout.scales}


def _by_block(layout: KVLayout, num_blocks: int, layers: Sequence[int]) -> dict[int, LayerKV]:
    """Lay all planes of a block side by side on large pages; those of a plane each would all end in an unused part."""
    wide, narrow = (layout.scales, torch.float32), (layout.group.planes, DTYPES[layout.format])
    parts = [(layer, p, dtype) for planes, dtype in (wide, narrow) for layer in layers for p in planes]
    sizes = [layout.block_size * p.heads * p.width * dtype.itemsize for _, p, dtype in parts]
    block = -(-sum(sizes) // ALIGNMENT) * ALIGNMENT
    memory = large_pages(num_blocks * block)
    cache: dict[int, dict[str, torch.Tensor]] = {layer: {} for layer in layers}
    start = 0
    for (layer, p, dtype), size in zip(parts, sizes, strict=True):
        shape, item = (num_blocks, layout.block_size, p.heads, p.width), dtype.itemsize
        strides = (block // item, p.heads * p.width, p.width, 1)
        cache[layer][p.name] = torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides, start // item)
        start += size
    return dict(cache)


def _host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take memory only once they are written: most of a pool may never be used."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
