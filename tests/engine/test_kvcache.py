"""The KV pools on the host: zeros of every format, nobody's twice, and no memory before it is written."""

from __future__ import annotations

import pytest
import torch

from inferd.bench.memory import resident_bytes
from inferd.engine.kvcache import DTYPES, allocate, nbytes
from inferd.plugin.types import KVFormat, KVGroup, KVLayout, KVPlane

LAYERS = (0, 2, 3)
by_block = pytest.mark.parametrize("by_block", [False, True], ids=["by plane", "by block"])


def layout(format: KVFormat, width: int = 8, *, by_block: bool = False) -> KVLayout:
    group = KVGroup(layers=LAYERS, planes=(KVPlane("k", 2, width), KVPlane("v", 2, width)), window=None)
    scales = (KVPlane("k_scale", 2, 1), KVPlane("v_scale", 2, 1)) if format in ("int8", "fp8") else ()
    return KVLayout(group, format, 5, scales, by_block)


@by_block
@pytest.mark.parametrize("format", DTYPES)
def test_every_format_starts_as_zeros_that_are_nobody_elses(format: KVFormat, by_block: bool) -> None:
    cache = allocate([layout(format, 7, by_block=by_block)], 6, "cpu", (0, 1, 2))
    assert set(cache) == {0, 2}
    planes = [plane for layer in cache.values() for plane in layer.values()]
    assert len(planes) == (8 if format in ("int8", "fp8") else 4)
    for layer in cache.values():
        assert {name: tuple(plane.shape) for name, plane in layer.items() if "_" not in name} == {
            "k": (6, 5, 2, 7),
            "v": (6, 5, 2, 7),
        }
    assert all(not plane.float().any() and plane[3].is_contiguous() for plane in planes)
    for number, plane in enumerate(planes):
        plane.fill_(number)
    assert all(bool((plane.float() == number).all()) for number, plane in enumerate(planes))


@by_block
def test_an_empty_pool_is_possible(by_block: bool) -> None:
    assert nbytes(allocate([layout("fp32", by_block=by_block)], 0, "cpu", (0,))) == 0


@by_block
def test_memory_is_taken_by_what_is_written_only(by_block: bool) -> None:
    blocks, one = 8192, 5 * 2 * 64 * 4
    before = resident_bytes()
    cache = allocate([layout("fp32", 64, by_block=by_block)], blocks, "cpu", (0, 2))
    assert nbytes(cache) == 4 * blocks * one
    assert resident_bytes() - before < 4 * blocks * one // 8
    for plane in cache[0].values():
        plane[:2048] = 1.0
    assert resident_bytes() - before > 2048 * one
    assert all(torch.count_nonzero(plane[2048:]) == 0 for plane in cache[0].values())


def test_blocks_of_all_layers_take_no_more_than_they_hold() -> None:
    """Planes of their own would each end in a large page of which little is used."""
    group = KVGroup(tuple(range(64)), (KVPlane("k", 4, 64), KVPlane("v", 4, 64)), window=None)
    made = KVLayout(group, "bf16", 16, by_block=True)
    before = resident_bytes()
    cache = allocate([made], 4096, "cpu", range(64))
    for layer in cache.values():
        for plane in layer.values():
            plane[:10] = 1
    written = 10 * made.bytes_per_block
    assert written <= resident_bytes() - before < written + (8 << 20)
