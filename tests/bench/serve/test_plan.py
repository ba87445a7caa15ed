"""What is sent, and when."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from inferd.bench.serve.plan import Planned, arrivals, requests
from inferd.bench.serve.profiles import Distribution, Independent, named

VOCABULARY = [*range(50, 150), 60, 60]


def plan(count: int = 150, *, context: int | None = None, seed: int = 0, **changes: object) -> list[Planned]:
    profile = Independent("x", Distribution("uniform", 20, 40), Distribution("uniform", 5, 9), **changes)
    return list(islice(requests(profile, VOCABULARY, context=context, seed=seed), count))


def test_prompts_have_their_lengths_and_known_tokens() -> None:
    found = plan()
    assert {len(p.prompt) for p in found} == set(range(20, 41))
    assert {p.output for p in found} == {5, 6, 7, 8, 9}
    assert {token for p in found for token in p.prompt} == set(range(50, 150))
    assert [p.index for p in found] == list(range(150))


def test_a_seed_plans_one_run() -> None:
    assert plan(seed=3) == plan(seed=3)
    assert plan(seed=3) != plan(seed=4)


def test_no_two_prompts_begin_alike_unless_they_shall() -> None:
    heads = [tuple(p.prompt[:4]) for p in plan()]
    assert len(set(heads)) == len(heads)
    found = plan(shared=15)
    assert len({tuple(p.prompt[:15]) for p in found}) == 1
    assert len({tuple(p.prompt[15:19]) for p in found}) == len(found)


def test_lengths_are_cut_to_the_context_and_marked() -> None:
    found = plan(context=30)
    assert all(len(p.prompt) + p.output <= 30 for p in found)
    assert {p.clipped for p in found} == {True, False}
    drawn = plan(64)
    assert [p.clipped for p in found[:64]] == [len(p.prompt) + p.output > 30 for p in drawn]


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="context of 1"):
        next(requests(named("SISO"), VOCABULARY, context=1, seed=0))


def test_arrivals_are_a_poisson_process() -> None:
    times = np.asarray(list(islice(arrivals(8.0, 5), 4000)))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.06), "exponential gaps deviate by their mean"
    counts = np.histogram(times, np.arange(0, times[-1], 1.0))[0]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.2)
