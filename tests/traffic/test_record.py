"""Buckets and the record of one model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferd.traffic.record import MAX_LENGTH, RECENT, Traffic, ceiling

LENGTHS = st.integers(0, 2 * MAX_LENGTH)


@given(LENGTHS)
def test_a_bucket_is_at_most_an_eighth_wide_and_holds_its_values(value: int) -> None:
    bound, kept = ceiling(value), min(value, MAX_LENGTH)
    assert kept <= bound <= max(15, kept * 9 / 8)
    assert ceiling(bound) == bound
    if kept < 16:
        assert bound == kept


@given(LENGTHS, LENGTHS)
def test_buckets_keep_the_order(a: int, b: int) -> None:
    assert (ceiling(a) <= ceiling(b)) or a > b


def test_there_are_few_buckets() -> None:
    """Bounds the joint histogram, and with it the file, whatever comes."""
    assert len({ceiling(1 << k | low << max(0, k - 5)) for k in range(21) for low in range(32)}) < 200
    assert ceiling(MAX_LENGTH) == ceiling(10**12)


def filled() -> Traffic:
    record = Traffic("m", 1000.0)
    for when, prompt, output, cached in ((1000.0, 10, 3, 0), (1000.5, 100, 7, 48), (1004.0, 10, 3, 9)):
        record.arrived(when)
        record.ended(when, prompt, [output], cached, "stop")
    return record


def test_what_is_noted() -> None:
    found = filled().report()
    assert (found.requests, found.prompt_tokens, found.cached_tokens) == (3, 120, 57)
    assert found.lengths == ((10, 3, 2), (103, 7, 1))
    assert found.gaps_ms == ((511, 1), (3583, 1))
    assert found.reuse_percent == ((0, 1), (40, 1), (90, 1))
    assert found.ends == {"stop": 3}
    assert found.recent == ((0, 10, 3, 0), (500, 100, 7, 48), (4000, 10, 3, 9))
    assert (found.since, found.until) == (1000.0, 1004.0)


def test_each_choice_is_a_sequence() -> None:
    record = Traffic("m", 0.0)
    record.ended(0.0, 5, [1, 2, 2], 0, "length")
    assert record.report().lengths == ((5, 1, 1), (5, 2, 2))
    assert record.report().requests == 1


def test_a_record_goes_on_where_it_was_left() -> None:
    first = filled()
    second = Traffic.of(first.report())
    assert second.report() == first.report()
    for record in (first, second):
        record.arrived(2000.0)
        record.ended(2000.0, 10, [3], 0, "cancelled")
    assert second.report().lengths == first.report().lengths == ((10, 3, 3), (103, 7, 1))
    assert sum(n for _, n in second.report().gaps_ms) == 2, "the time that nobody kept a record is no gap"


def test_it_stays_bounded() -> None:
    record = Traffic("m", 0.0)
    for i in range(RECENT + 50):
        record.ended(float(i), i, [i], 0, "stop")
    found = record.report()
    assert len(found.recent) == RECENT
    assert found.recent[0][0] == 50_000
    assert len(found.lengths) < 120
