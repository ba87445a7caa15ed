"""Reservation by example: full length from the start, real fragmentation, joined free runs."""

from __future__ import annotations

import random

import pytest

from inferd.plugin.types import KVGroupSize
from inferd_plugins.kv.contiguous import ContiguousKV
from inferd_plugins.kv.extents import Extents


def manager(blocks: int) -> ContiguousKV:
    made = ContiguousKV()
    made.bind([KVGroupSize(blocks, None)], 4, prefix_cache=True)
    return made


def test_the_full_limit_is_reserved_in_one_run():
    kv = manager(10)
    tables = kv.allocate(1, 3, limit=20)
    assert tables == [[0, 1, 2, 3, 4]]
    assert kv.stats().free_blocks == 5
    kv.truncate(1, 3)
    assert kv.stats().free_blocks == 5, "the reservation stays"
    assert kv.allocate(1, 20, limit=20) == [[0, 1, 2, 3, 4]]
    kv.free(1)
    assert kv.stats().free_blocks == 10


def test_fragmentation_is_real():
    kv = manager(9)
    for key in range(3):
        assert kv.allocate(key, 1, limit=12)
    kv.free(0)
    kv.free(2)
    assert kv.stats().free_blocks == 6
    assert kv.allocate(3, 1, limit=24) is None, "six blocks are free, but not in a row"
    kv.free(1)
    assert kv.allocate(3, 1, limit=24) == [[0, 1, 2, 3, 4, 5]]


def test_no_prefix_is_shared():
    kv = manager(9)
    kv.match(0, [1] * 8)
    kv.allocate(0, 8, limit=8)
    kv.append(0, [1] * 8)
    kv.free(0)
    assert kv.match(1, [1] * 8) == 0


def test_a_reservation_grows_only_into_the_run_behind_it():
    kv = manager(6)
    assert kv.allocate(0, 4, limit=4) == [[0]]
    assert kv.allocate(0, 8, limit=8) == [[0, 1]]
    assert kv.allocate(1, 4, limit=4) == [[2]]
    assert kv.allocate(0, 12, limit=12) is None
    assert kv.problems() == []


def test_freeing_twice_is_an_error():
    kv = manager(4)
    kv.allocate(0, 4, limit=8)
    kv.free(0)
    with pytest.raises(KeyError):
        kv.free(0)
    runs = Extents(8)
    runs.take(4)
    runs.give(0, 4)
    with pytest.raises(ValueError, match="freed twice"):
        runs.give(2, 1)


def test_runs_match_a_bitmap():
    rng = random.Random(4)
    runs, free, held = Extents(40), [True] * 40, []
    for _ in range(3000):
        if held and rng.random() < 0.5:
            start, length = held.pop(rng.randrange(len(held)))
            runs.give(start, length)
            free[start : start + length] = [True] * length
            continue
        length = rng.randint(1, 6)
        fits = [at for at in range(41 - length) if all(free[at : at + length])]
        start = runs.take(length)
        assert start == (fits[0] if fits else None)
        if start is not None:
            held.append((start, length))
            free[start : start + length] = [False] * length
        assert runs.num_free == sum(free)
