"""A short soak, and proof that it sees leaks, lost answers and growth."""

from __future__ import annotations

from typing import Any

import pytest

from inferd_client import EngineLost, RequestTimeout
from tests.bench.soak.__main__ import ENGINE, _failures, soak
from tests.bench.soak.books import Books, quantiles
from tests.bench.soak.gauges import Gauges
from tests.e2e.harness import serving
from tests.tiny import tiny_llama

TREND = {"first_mib": 100.0, "last_mib": 101.0, "grown_percent": 1.0, "files": [10, 10], "threads": [5, 5]}
GOOD: dict[str, Any] = {
    "unanswered": 0,
    "leaked_blocks": 0,
    "left_in_books": 0,
    "handler_faults": 0,
    "preemptions": 3,
    "wrong": [],
    "stuck": [],
    "memory": {"front": TREND},
}


def test_a_good_end_has_no_failures() -> None:
    assert list(_failures(GOOD)) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"unanswered": 1}, "unanswered is 1"),
        ({"leaked_blocks": 3}, "leaked_blocks is 3"),
        ({"left_in_books": 2}, "left_in_books is 2"),
        ({"handler_faults": 1}, "handler_faults is 1"),
        ({"preemptions": 0}, "no request was preempted"),
        ({"wrong": ["the witness got other tokens"]}, "the witness"),
        ({"stuck": ["user"]}, "user did not end"),
        ({"memory": {"front": TREND | {"last_mib": 130.0, "grown_percent": 30.0}}}, "front grew from 100.0 to 130.0"),
        ({"memory": {"worker": TREND | {"files": [10, 40]}}}, "worker: files went from 10 to 40"),
        ({"memory": {"worker": TREND | {"threads": [5, 90]}}}, "worker: threads went from 5 to 90"),
    ],
)
def test_each_failure_is_named(change: dict[str, Any], text: str) -> None:
    assert any(text in line for line in _failures(GOOD | change))


def test_books_know_who_was_not_answered_and_what_was_wrong() -> None:
    books = Books()
    with books.request("a") as outcome:
        outcome.append("length")
    with books.request("a", "engine_lost"):
        raise EngineLost("gone")
    assert (books.unanswered, books.wrong) == (0, [])
    with books.request("a"):
        raise RequestTimeout("total", 1.0)
    with books.request("a"):
        raise EngineLost("gone")
    with books.request("a"):
        raise KeyError("ours")
    books.begun["a"] += 1
    assert books.unanswered == 2
    assert len(books.wrong) == 2
    assert books.summary()["ends"]["a"] == {"length": 1, "engine_lost": 2, "unanswered": 1, "KeyError": 1}


def test_growth_is_of_the_process_that_is_alive_at_the_end() -> None:
    gauges = Gauges.__new__(Gauges)
    gauges.samples = [(float(t), "worker", 1 if t < 20 else 2, (500 if t < 20 else t) << 20, 9, 3) for t in range(60)]
    trend = gauges.trend("worker", 0.0)
    assert trend is not None
    assert (trend["first_mib"], trend["last_mib"]) == (24.5, 54.5)
    assert gauges.trend("worker", 55.0) is None


def test_quantiles() -> None:
    assert quantiles([]) == {"count": 0}
    assert quantiles([0.001 * i for i in range(1, 101)]) == {
        "count": 100,
        "p50": 50.0,
        "p95": 95.0,
        "p99": 99.0,
        "max": 100.0,
    }


@pytest.mark.full
@pytest.mark.daemon
def test_a_short_soak(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = str(tiny_llama(tmp_path_factory.mktemp("soak") / "tiny", context=4096))
    with serving(model, {"engine": ENGINE, "daemon": {"max_queue": 64}}) as daemon:
        result = soak(daemon, model, 24.0)
    assert result["failures"] == []
    assert result["kills"] > 0
    assert result["requests"] > 100
    assert result["preemptions"] > 0
