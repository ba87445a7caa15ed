"""Latencies by their definitions, on a fake clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.link import StepStats
from inferd.metrics import LatencyWindow, Metrics, TokenClock, timings
from inferd_client.protocol import Usage

GAPS = st.floats(0.001, 10)
USAGE = Usage(prompt_tokens=3, completion_tokens=1)
EVENTS = st.lists(st.tuples(GAPS, st.integers(1, 6)), min_size=1, max_size=40)


@given(GAPS, GAPS, EVENTS)
def test_one_stream(queue: float, prefill: float, events: list[tuple[float, int]]) -> None:
    """TTFT, TPOT, ITL and e2e of any stream, also where several tokens arrive at once."""
    clock, now, gaps = TokenClock(), 100.0 + queue + prefill, []
    for i, (gap, count) in enumerate(events):
        now += gap if i else 0
        gaps += clock.record(now, count)
    measured = timings(100.0, 100.0 + queue, [clock], now + 5)
    total = sum(count for _, count in events)
    assert measured.queue_s == pytest.approx(queue)
    assert measured.prefill_s == pytest.approx(prefill)
    assert measured.ttft_s == pytest.approx(queue + prefill)
    assert measured.e2e_s == pytest.approx(now - 100.0)
    assert clock.count == total
    assert len(gaps) == total - 1
    assert sum(gaps) == pytest.approx(measured.e2e_s - measured.ttft_s)
    if total == 1:
        assert measured.tpot_s is None
    else:
        assert measured.tpot_s == pytest.approx((measured.e2e_s - measured.ttft_s) / (total - 1))


def test_nothing_came() -> None:
    measured = timings(10.0, None, [TokenClock()], 12.0)
    assert (measured.queue_s, measured.prefill_s, measured.ttft_s, measured.tpot_s) == (None,) * 4
    assert measured.e2e_s == 2.0
    assert timings(10.0, 11.0, [], 12.0).queue_s == 1.0


def test_choices_share_their_mean() -> None:
    fast, slow = TokenClock(), TokenClock()
    for clock, gap in ((fast, 0.1), (slow, 0.3)):
        for i in range(5):
            list(clock.record(1.0 + i * gap, 1))
    measured = timings(0.0, 0.5, [fast, slow], 9.0)
    assert measured.ttft_s == 1.0
    assert measured.tpot_s == pytest.approx(0.2)
    assert measured.e2e_s == pytest.approx(1.0 + 4 * 0.3)


def test_k_tokens_at_once_share_the_gap_before_them() -> None:
    clock = TokenClock()
    assert list(clock.record(1.0, 1)) == []
    assert list(clock.record(2.0, 4)) == [0.25] * 4
    assert list(clock.record(2.5, 0)) == []
    assert list(clock.record(3.0, 2)) == [0.5] * 2


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_percentiles_are_samples_in_order(values: list[float]) -> None:
    window = LatencyWindow()
    for i, value in enumerate(values):
        window.record(value, i * 0.01)
    found = window.summary(3.0)
    assert found.count == len(values)
    assert {found.p50, found.p95, found.p99} <= set(values)
    assert found.p50 <= found.p95 <= found.p99
    assert sum(v <= found.p50 for v in values) >= 0.5 * len(values)
    assert sum(v <= found.p99 for v in values) >= 0.99 * len(values)


def test_the_window_forgets_and_is_bounded() -> None:
    window = LatencyWindow(window_s=10, max_samples=5)
    assert window.summary(0.0).p50 is None
    for i in range(20):
        window.record(float(i), float(i))
    assert window.summary(19.0).count == 5
    assert window.summary(27.5).count == 2
    assert window.summary(100.0).count == 0


def test_step_counters_add_increments_and_differences_of_totals() -> None:
    metrics, previous = Metrics(), None
    for step in range(1, 4):
        stats = _stats(prefix_queries=10 * step, prefix_hits=3 * step, preemptions=step, prefill_tokens=5, drafted=2)
        metrics.step(stats, previous)
        previous = stats
    metrics.step(_stats(prefix_queries=4), None)
    assert metrics.counters["inferd_prefix_cache_queries_total"] == 34
    assert metrics.counters["inferd_prefix_cache_hits_total"] == 9
    assert metrics.counters["inferd_num_preemptions_total"] == 3
    assert metrics.counters["inferd_prefill_tokens_total"] == 15
    assert metrics.counters["inferd_spec_decode_num_draft_tokens_total"] == 6
    assert metrics.counters["inferd_prefill_seconds_total"] == pytest.approx(0.4)


def test_only_served_requests_enter_the_latencies() -> None:
    metrics = Metrics()
    metrics.finished("cancelled", timings(0.0, None, [], 1.0), USAGE, 1.0)
    clock = TokenClock()
    list(clock.record(0.5, 1))
    metrics.finished("stop", timings(0.0, 0.1, [clock], 0.5), USAGE, 1.0)
    found = metrics.latencies(1.0)
    assert (found["ttft"].count, found["e2e"].count, found["tpot"].count) == (1, 1, 0)
    assert metrics.counters == {
        'inferd_request_success_total{finished_reason="cancelled"}': 1,
        'inferd_request_success_total{finished_reason="stop"}': 1,
        "inferd_prompt_tokens_total": 6,
    }
    sizes = metrics.histograms()["request_prompt_tokens"]
    assert (sizes.counts[-1], sizes.total) == (1, 3)


def test_the_retry_hint_falls_with_the_rate_of_completions() -> None:
    metrics = Metrics()
    assert metrics.retry_after_ms(64, 0.0) == 1000
    for i in range(100):
        metrics.finished("stop", timings(0.0, None, [], 0.0), USAGE, i * 0.1)
    quick = metrics.retry_after_ms(64, 10.0)
    assert 50 <= quick < 1000
    assert metrics.retry_after_ms(6400, 10.0) > quick


def _stats(**values: int) -> StepStats:
    zero = dict.fromkeys(StepStats.__struct_fields__, 0)
    return StepStats(**(zero | {"now": 0.0, "prefill_s": 0.1, "decode_s": 0.0, "overlap": None} | values))


def test_several_steps_of_a_call_are_timed_as_steps() -> None:
    metrics = Metrics()
    metrics.step(_stats(now=1, decode_s=6, decoding=1, later_steps=2), None)
    found = metrics.latencies(1.0)
    assert (found["decode"].count, found["decode"].p50) == (3, 2)


def test_steps_with_drafts_are_timed_apart() -> None:
    metrics = Metrics()
    metrics.step(_stats(now=1, decode_s=2, decoding=1), None)
    metrics.step(_stats(now=2, decode_s=3, verifying=1), None)
    metrics.step(_stats(now=3), None)
    found = metrics.latencies(3.0)
    assert (found["decode"].count, found["decode"].p50, found["verify"].count, found["verify"].p50) == (1, 2, 1, 3)
