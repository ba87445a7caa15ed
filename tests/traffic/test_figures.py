"""Quantiles of a record against those of the lengths it was made of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.traffic import figures
from inferd.traffic.record import Traffic
from inferd_client.protocol import TrafficReport

PAIRS = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=60)


def report_of(pairs: list[tuple[int, int]]) -> TrafficReport:
    record = Traffic("m", 0.0)
    for prompt, output in pairs:
        record.ended(0.0, prompt, [output], 0, "stop")
    return record.report()


def exact(values: list[int], share: float) -> int:
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


@given(PAIRS, st.sampled_from(figures.QUANTILES))
def test_single_quantiles_are_close_upper_bounds(pairs: list[tuple[int, int]], share: float) -> None:
    report = report_of(pairs)
    for counts, values in (
        (figures.inputs(report), [i for i, _ in pairs]),
        (figures.outputs(report), [o for _, o in pairs]),
        (figures.totals(report), [i + o for i, o in pairs]),
    ):
        found = figures.quantile(counts, share)
        assert found is not None
        assert exact(values, share) <= found <= max(30, exact(values, share) * 9 / 8 + 1)


@given(PAIRS, st.sampled_from(figures.QUANTILES))
def test_the_joint_box_covers_its_share_and_no_smaller_level_does(pairs: list[tuple[int, int]], share: float) -> None:
    report = report_of(pairs)
    box = figures.box(report, share)
    assert box is not None
    assert sum(i <= box.input and o <= box.output for i, o in pairs) >= share * len(pairs) - 1e-9
    isl, osl = figures.inputs(report), figures.outputs(report)
    lower = [i for i in sorted(isl) if i < box.input], [o for o in sorted(osl) if o < box.output]
    if lower[0] and lower[1]:
        assert figures.coverage(report, lower[0][-1], lower[1][-1]) < share


def test_marginal_quantiles_together_cover_less() -> None:
    """Long inputs with short outputs and the reverse: each marginal P90 is 10, but no 90 % are within both."""
    report = report_of([(10, 10)] * 80 + [(1000, 10)] * 10 + [(10, 1000)] * 10)
    singly = figures.quantile(figures.inputs(report), 0.9), figures.quantile(figures.outputs(report), 0.9)
    assert singly == (10, 10)
    assert figures.coverage(report, 10, 10) == pytest.approx(0.8)
    box = figures.box(report, 0.9)
    assert box is not None
    assert figures.coverage(report, *box) >= 0.9
    assert box != (10, 10)


def test_rate_is_over_the_gaps() -> None:
    record = Traffic("m", 0.0)
    for i in range(9):
        record.arrived(i * 0.008)
    assert figures.rate(record.report()) == pytest.approx(125.0)
    assert figures.rate(report_of([(1, 1)])) is None


def test_an_empty_record_has_no_figures() -> None:
    report = report_of([])
    assert figures.quantile(figures.inputs(report), 0.5) is None
    assert figures.box(report, 0.95) is None
    assert figures.coverage(report, 1, 1) == 0.0
