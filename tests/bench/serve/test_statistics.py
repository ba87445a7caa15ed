"""Estimates and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from inferd.bench.serve.statistics import Estimate, estimate, mean, percentile, rate


def test_nothing_and_one_sample() -> None:
    assert estimate([], mean) is None
    assert estimate([[], []], mean) is None
    assert estimate([[3.0]], mean) == Estimate(3.0)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = np.arange(1.0, 101.0)
    assert [percentile(share)(values) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]


def test_the_interval_holds_the_truth_about_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for turn in range(120):
        found = estimate([[v] for v in rng.exponential(2.0, 60)], mean, seed=turn)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        hits += found.low <= 2.0 <= found.high
    assert 0.86 <= hits / 120 <= 0.99


def test_values_of_one_group_are_one_witness() -> None:
    """Ten answers of 100 equal gaps each say no more than ten gaps: the interval must not shrink."""
    groups = [[float(i)] for i in range(10)]
    alone = estimate(groups, mean)
    repeated = estimate([group * 100 for group in groups], mean)
    assert alone is not None
    assert repeated is not None
    assert repeated.low == pytest.approx(alone.low, abs=0.3)
    assert repeated.high == pytest.approx(alone.high, abs=0.3)


def test_a_rate_is_the_total_over_the_time() -> None:
    times = list(np.linspace(0.0, 10.0, 200, endpoint=False))
    found = rate(times, [3] * 200, 10.0)
    assert found is not None
    assert found.value == pytest.approx(60.0)
    assert found.low == pytest.approx(60.0)
    assert rate([], [], 0.0) is None
    uneven = rate([0.1, 0.2, 0.3, 9.9], [100, 100, 100, 1], 10.0)
    assert uneven is not None
    assert uneven.value == pytest.approx(30.1)
    assert uneven.low is not None
    assert uneven.low < 20
