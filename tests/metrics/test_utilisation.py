"""MFU and MBU over the last minute, and histograms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.link import Ceilings, StepStats
from inferd.metrics.histogram import Histogram
from inferd.metrics.totals import weight_share
from inferd.metrics.utilisation import UseWindow

CEILINGS = Ceilings(read_bytes_s=1000.0, flops={"int8": 500.0})


def stats(now: float, **values: float) -> StepStats:
    zero = dict.fromkeys(StepStats.__struct_fields__, 0)
    return StepStats(**(zero | {"now": now, "overlap": None} | values))  # pyright: ignore[reportArgumentType]


def test_achieved_against_the_ceilings() -> None:
    window = UseWindow()
    window.add(stats(1.0, prefill_tokens=9, prefill_s=2.0, prefill_flops=200.0))
    window.add(stats(1.2, decode_s=1.0, weight_bytes=90, kv_bytes=10.0))
    window.add(stats(2.9, decode_s=1.0, weight_bytes=90, kv_bytes=210.0))
    found = window.read(3.0, CEILINGS, "int8")
    assert (found.prefill_flops_s, found.mfu) == (100.0, 0.2)
    assert (found.decode_bytes_s, found.mbu, found.weight_share) == (200.0, 0.2, 0.45)
    assert (found.flops_ceiling, found.bytes_ceiling, found.flops_format) == (500.0, 1000.0, "int8")


def test_a_mixed_step_counts_for_prefill_alone() -> None:
    """Its decode rows share the weight read with prefill: bytes over their part of the time would be too many."""
    window = UseWindow()
    window.add(stats(1.0, prefill_tokens=9, prefill_s=1.0, prefill_flops=50.0, decode_s=0.1, weight_bytes=90))
    found = window.read(1.0, CEILINGS, "int8")
    assert (found.mfu, found.mbu, found.weight_share) == (0.1, None, None)


def test_nothing_ran_or_nothing_is_known() -> None:
    window = UseWindow(window_s=10)
    assert window.read(0.0, CEILINGS, "int8").mbu is None
    window.add(stats(1.0, decode_s=1.0, weight_bytes=100))
    assert window.read(2.0, None, "int8").mbu is None
    assert window.read(2.0, CEILINGS, "fp32").decode_bytes_s == 100.0
    assert window.read(2.0, Ceilings(read_bytes_s=0.0, flops={"int8": 0.0}), "int8").mbu is None
    assert window.read(12.0, CEILINGS, "int8").decode_bytes_s is None


def test_what_was_achieved_can_be_done() -> None:
    """A ceiling measured on a busy machine is too low: more than all of it is never shown."""
    window = UseWindow(window_s=10)
    window.add(stats(1.0, decode_s=0.5, weight_bytes=1500))
    short = window.read(1.0, CEILINGS, "int8")
    assert (short.mbu, short.bytes_ceiling) == (1.0, 3000.0)
    window.add(stats(2.0, prefill_tokens=1, prefill_s=2.0, prefill_flops=3000.0))
    window.add(stats(3.0, decode_s=0.5, weight_bytes=500))
    found = window.read(3.0, CEILINGS, "int8")
    assert (found.mbu, found.bytes_ceiling, found.mfu, found.flops_ceiling) == (1.0, 2000.0, 1.0, 1500.0)
    window.add(stats(20.0, decode_s=2.0, weight_bytes=1000))
    assert window.read(20.0, CEILINGS, "int8").mbu == 0.25
    assert window.read(20.0, None, "int8").bytes_ceiling is None


def test_the_share_of_weights() -> None:
    assert weight_share(stats(0.0, weight_bytes=30, kv_bytes=10.0)) == 0.75
    assert weight_share(stats(0.0)) == 1.0


@given(st.lists(st.floats(0, 1000)))
def test_histograms_count_by_upper_bound(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.record(value)
    found = histogram.read()
    assert found.counts == (*(sum(v <= bound for v in values) for bound in found.bounds), len(values))
    assert found.total == pytest.approx(sum(values))
