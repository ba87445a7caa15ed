"""Prompt lookup: what it finds, what it costs, and that its index equals a plain search."""

from __future__ import annotations

import random
import time

import msgspec
import pytest

from inferd.plugin.types import DraftSequence
from inferd_plugins.draft.ngram import NgramDraft, NgramOptions


def propose(drafter: NgramDraft, tokens: list[int], k: int = 4, *, key: int = 0, limit: int = 99) -> list[int]:
    return drafter.propose([DraftSequence(key, tokens, limit)], k)[0]


def plain(tokens: list[int], k: int, options: NgramOptions) -> list[int]:
    """The same by brute force: longest of the latest few matches, then a copy that may overlap."""
    n = options.min_n
    ends = [e for e in range(n, len(tokens)) if tokens[e - n : e] == tokens[len(tokens) - n :]]
    best, best_length = -1, 0
    for end in list(reversed(ends))[: options.candidates]:
        length = n
        while length < min(options.max_n, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length > best_length:
            best, best_length = end, length
    out: list[int] = []
    while best > 0 and len(out) < k:
        out.append((tokens + out)[best + len(out)])
    return out


def test_equals_a_plain_search_while_sequences_grow():
    rng = random.Random(8)
    for options in (NgramOptions(), NgramOptions(min_n=1, max_n=3, candidates=2), NgramOptions(min_n=3, max_n=3)):
        drafter = NgramDraft(options)
        for key in range(15):
            tokens = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
            for _ in range(25):
                assert propose(drafter, tokens, key=key) == plain(tokens, 4, options)
                tokens = tokens + [rng.randrange(4) for _ in range(rng.randint(1, 4))]


def test_a_copy_goes_on_past_the_end():
    """1.10: k larger than what follows the match."""
    assert propose(NgramDraft(), [1, 2, 3, 1, 2, 3, 1, 2], 9) == [3, 1, 2, 3, 1, 2, 3, 1, 2]


def test_nothing_repeats_nothing_is_proposed():
    drafter = NgramDraft()
    assert propose(drafter, list(range(20))) == []
    assert propose(drafter, [1], key=1) == []
    assert propose(drafter, [1, 1], key=2) == []


def test_limit_and_k_bound_the_proposal():
    drafter = NgramDraft()
    tokens = [1, 2, 3, 4, 5, 1, 2]
    assert propose(drafter, tokens, 9, limit=2) == [3, 4]
    assert propose(drafter, tokens, 1) == [3]
    assert propose(drafter, tokens, 4, limit=0) == []


def test_the_longest_match_wins_over_the_latest():
    tokens = [7, 8, 1, 2, 50, 9, 1, 2, 60, 7, 8, 1, 2]
    assert propose(NgramDraft(), tokens, 1) == [50]


def test_the_window_bounds_what_is_indexed():
    tokens = [1, 2, 3, *range(10, 40), 1, 2]
    assert propose(NgramDraft(), tokens, 1) == [3]
    assert propose(NgramDraft(NgramOptions(window=20)), tokens, 1) == []


def test_dropped_and_shortened_sequences_are_indexed_anew():
    drafter = NgramDraft()
    assert propose(drafter, [1, 2, 3, 1, 2], 1) == [3]
    assert propose(drafter, [4, 5, 4, 5], 1) == [4], "the key now names a shorter sequence"
    drafter.drop(0)
    drafter.drop(0)
    assert drafter._indexes == {}


def test_a_step_costs_little_however_long_the_context():
    rng = random.Random(1)
    tokens = [rng.randrange(1000) for _ in range(50_000)]
    drafter = NgramDraft(NgramOptions(window=100_000))
    propose(drafter, tokens)
    start = time.thread_time()
    for _ in range(200):
        tokens.append(rng.randrange(1000))
        propose(drafter, tokens)
    assert (time.thread_time() - start) / 200 < 0.001


@pytest.mark.parametrize("bad", [{"min_n": 0}, {"min_n": 4, "max_n": 3}, {"window": 0}, {"candidates": 0}, {"n": 2}])
def test_options_are_checked(bad):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, NgramOptions)
