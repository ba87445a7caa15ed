"""The KV pools on the host: zeros of every format, and no memory before it is written."""

from __future__ import annotations

import pytest
import torch

from inferd.bench.memory import resident_bytes
from inferd.engine.kvcache import DTYPES, allocate, nbytes
from inferd.plugin.types import KVFormat, KVGroup, KVLayout, KVPlane


def layout(format: KVFormat, width: int = 8) -> KVLayout:
    group = KVGroup(layers=(0, 2), planes=(KVPlane("k", 2, width), KVPlane("v", 2, width)), window=None)
    return KVLayout(group=group, format=format, block_size=16)


@pytest.mark.parametrize("format", DTYPES)
def test_every_format_starts_as_zeros(format: KVFormat) -> None:
    cache = allocate([layout(format)], 5, "cpu", (0, 1, 2))
    assert set(cache) == {0, 2}
    for planes in cache.values():
        assert {p: tuple(t.shape) for p, t in planes.items()} == {"k": (5, 16, 2, 8), "v": (5, 16, 2, 8)}
        assert all(not t.float().any() and t.is_contiguous() for t in planes.values())


def test_an_empty_pool_is_possible() -> None:
    assert nbytes(allocate([layout("fp32")], 0, "cpu", (0,))) == 0


def test_memory_is_taken_by_what_is_written_only() -> None:
    blocks, one = 4096, 16 * 2 * 64 * 4
    before = resident_bytes()
    cache = allocate([layout("fp32", 64)], blocks, "cpu", (0, 2))
    assert nbytes(cache) == 4 * blocks * one
    assert resident_bytes() - before < 4 * blocks * one // 8
    cache[0]["k"][:1024] = 1.0
    assert resident_bytes() - before > 1024 * one // 2
    assert torch.count_nonzero(cache[0]["k"][1024:]) == 0
