"""Memory of weights: zeroed, aligned, nobody's twice, and kept by whoever still uses a part of it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import torch

from inferd_kernels.cpu.pages import ALIGNMENT, SLAB, Slabs, large_pages

SIZES = (1, 63, 64, 5760, 1 << 20, 0, 3)


def test_parts_are_zeroed_aligned_and_apart() -> None:
    slabs = Slabs()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(slabs.take, SIZES * 5))
    assert [part.numel() for part in parts] == list(SIZES * 5)
    assert all(part.data_ptr() % ALIGNMENT == 0 and not part.any() for part in parts if part.numel())
    for number, part in enumerate(parts):
        part.fill_(number)
    assert all(bool((part == number).all()) for number, part in enumerate(parts))


def test_a_part_outlives_its_slab() -> None:
    slabs = Slabs()
    first = slabs.take(4096).fill_(7)
    large = slabs.take(SLAB + 1)
    assert large.numel() == SLAB + 1
    assert slabs.take(64).data_ptr() >= large.data_ptr() + large.numel()
    del slabs, large
    gc.collect()
    assert torch.equal(first, torch.full((4096,), 7, dtype=torch.uint8))


def test_large_pages_round_up() -> None:
    assert len(large_pages(1)) == len(large_pages(2 << 20)) == 2 << 20
