"""The prefix cache by example: recycling, domains, windows, eviction order, collisions."""

from __future__ import annotations

import pytest

from inferd.plugin.types import KVGroupSize
from inferd_plugins.kv import chain
from inferd_plugins.kv.paged import NO_BLOCK, PagedKV

SIZE = 4


def manager(blocks: int = 8, windows: tuple[int | None, ...] = (None,), *, cache: bool = True) -> PagedKV:
    made = PagedKV()
    made.bind([KVGroupSize(blocks, window) for window in windows], SIZE, prefix_cache=cache)
    return made


def run(kv: PagedKV, key: int, tokens: list[int], domain: str = "") -> tuple[int, list[list[int]]]:
    """Match, allocate and compute a prompt; return its hit and its tables."""
    hit = kv.match(key, tokens, domain=domain)
    tables = kv.allocate(key, len(tokens), limit=64)
    assert tables is not None
    kv.append(key, tokens[hit:])
    return hit, tables


def test_a_recycled_block_loses_its_hash():
    """1.1: three blocks; X, then others until X's block is reused, then X again."""
    kv = manager(blocks=3)
    x = [1, 2, 3, 4]
    run(kv, 0, x)
    kv.free(0)
    for key in range(1, 5):
        run(kv, key, [10 * key + i for i in range(SIZE)])
        kv.free(key)
        assert kv.problems() == []
    assert kv.match(9, [*x, 5]) == 0


def test_one_token_is_always_left_to_compute():
    kv = manager()
    run(kv, 0, [1] * 8)
    kv.free(0)
    assert kv.match(1, [1] * 8) == 4
    assert kv.match(2, [1] * 9) == 8


def test_blocks_are_shared_while_their_first_holder_runs():
    kv = manager()
    _, first = run(kv, 0, [1, 2, 3, 4, 5, 6])
    hit, second = run(kv, 1, [1, 2, 3, 4, 9])
    assert hit == 4
    assert second[0][0] == first[0][0]
    assert second[0][1] != first[0][1]
    kv.free(0)
    assert kv.stats().free_blocks == 6
    kv.free(1)
    assert kv.stats().free_blocks == 8


def test_domains_share_nothing():
    kv = manager()
    run(kv, 0, [1] * 8, "model-a")
    kv.free(0)
    assert kv.match(1, [1] * 8, domain="model-b") == 0
    assert kv.match(2, [1] * 8, domain="model-a") == 4


def test_a_hash_collision_is_no_hit(monkeypatch):
    """Token ids are compared: a key alone proves nothing."""
    monkeypatch.setattr(chain, "extend", lambda parent, tokens: b"same")
    kv = manager()
    run(kv, 0, [1, 2, 3, 4])
    kv.free(0)
    assert kv.match(1, [5, 6, 7, 8, 9]) == 0
    assert kv.match(2, [1, 2, 3, 4, 9]) == 4


def test_a_block_depends_on_what_stands_before_it():
    kv = manager()
    run(kv, 0, [1] * 4 + [2] * 4)
    kv.free(0)
    assert kv.match(1, [3] * 4 + [2] * 4 + [0]) == 0


def test_least_recently_used_goes_first_and_ends_before_starts():
    kv = manager(blocks=6)
    run(kv, 0, [1] * 8)
    run(kv, 1, [2] * 8)
    kv.free(0)
    kv.free(1)
    assert kv.stats().cached_blocks == 4
    kv.match(2, [1] * 9)
    kv.free(2)
    run(kv, 3, [7] * 12)
    kv.free(3, reusable=False)
    assert kv.match(4, [2] * 9) == 4, "the end of the older prefix was recycled, its start was not"
    kv.free(4)
    assert kv.match(5, [1] * 9) == 8


def test_bad_numerics_are_forgotten_in_shared_blocks_too():
    kv = manager()
    run(kv, 0, [1] * 8)
    run(kv, 1, [1] * 9)
    kv.free(1, reusable=False)
    kv.free(0)
    assert kv.match(2, [1] * 9) == 0
    assert kv.problems() == []


def test_failing_allocations_change_nothing():
    kv = manager(blocks=4)
    run(kv, 0, [1] * 10)
    assert kv.allocate(0, 17, limit=20) is None
    assert kv.allocate(1, 8, limit=8) is None
    with pytest.raises(KeyError):
        kv.free(1)
    assert kv.stats().free_blocks == 1
    assert kv.allocate(0, 16, limit=20) is not None


def test_rejected_drafts_give_whole_blocks_back():
    kv = manager()
    run(kv, 0, [1] * 6)
    tables = kv.allocate(0, 14, limit=20)
    assert tables is not None
    assert len(tables[0]) == 4
    kv.append(0, [2])
    kv.truncate(0, 7)
    assert len(tables[0]) == 2
    kv.append(0, [3])
    kv.free(0)
    assert kv.match(1, [1, 1, 1, 1, 1, 1, 2, 3, 0]) == 8


def test_cutting_into_a_full_block_forgets_it_or_refuses():
    kv = manager()
    run(kv, 0, [1] * 8)
    kv.truncate(0, 6)
    assert kv.problems() == []
    kv.append(0, [2, 2])
    assert kv.match(1, [1] * 8 + [0]) == 4
    assert kv.match(2, [1] * 6 + [2, 2, 0]) == 8
    with pytest.raises(ValueError, match="shared"):
        kv.truncate(0, 6)


def test_blocks_behind_a_window_come_free():
    kv = manager(blocks=8, windows=(None, 6))
    _, tables = run(kv, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    assert NO_BLOCK not in tables[1], "position 8 still sees positions 3 to 7"
    for token in range(8, 14):
        tables = kv.allocate(0, token + 1, limit=64)
        kv.append(0, [token])
    assert tables is not None
    assert tables[1][0] == NO_BLOCK
    assert tables[1][1] == NO_BLOCK
    assert tables[1][2] >= 0
    assert NO_BLOCK not in tables[0]
    assert kv.stats().free_blocks == (8 - 4) + (8 - 2)
    kv.free(0)
    assert kv.stats().free_blocks == 16


def test_a_hit_must_serve_every_group():
    kv = manager(blocks=8, windows=(None, 6))
    prompt = list(range(16))
    run(kv, 0, prompt)
    kv.free(0)
    hit, tables = run(kv, 1, [*prompt, 99])
    assert hit == 16
    assert tables[1][:2] == [NO_BLOCK, NO_BLOCK], "what lies behind the window is not even taken"
    kv.free(1)
    kv._pools[1].forget(kv._pools[1].find(*list(chain.full_blocks("", prompt, SIZE, 4))[-1]))
    assert kv.match(2, [*prompt, 99]) == 12, "the windowed group lost its last block"


def test_without_a_cache_nothing_is_found():
    kv = manager(cache=False)
    run(kv, 0, [1] * 8)
    kv.free(0)
    assert kv.match(1, [1] * 9) == 0
    assert kv.stats().cached_blocks == 0


def test_queries_count_once_however_often_admission_is_tried():
    kv = manager(blocks=4)
    run(kv, 0, [1] * 10)
    for _ in range(5):
        kv.match(1, [1] * 9)
        assert kv.allocate(1, 40, limit=40) is None
        kv.free(1)
    assert kv.stats().queries == 10
