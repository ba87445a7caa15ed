"""Figures of runs whose times are known."""

from __future__ import annotations

import pytest

from inferd.bench.serve.load import Outcome
from inferd.bench.serve.plan import Planned
from inferd.bench.serve.report import render, render_sweep
from inferd.bench.serve.spent import Spent, spent
from inferd.bench.serve.summary import Bounds, Summary, summarize
from inferd_client.protocol import Cost, CostStatus, Usage


def outcome(due: float, *times: float, sent: float | None = None, error: str = "", per: int = 1) -> Outcome:
    return Outcome(
        Planned(0, [1, 2, 3], len(times)),
        due,
        sent=due if sent is None else sent,
        tokens=[(t, per) for t in times],
        end=times[-1] if times else due,
        error=error,
        usage=None if error else Usage(prompt_tokens=3, completion_tokens=per * len(times), cached_tokens=1),
    )


def value(summary: Summary, name: str, column: str) -> float:
    found = summary.latency[name][column]
    assert found is not None
    return found.value


def test_latencies_of_one_answer() -> None:
    one = outcome(1.0, 1.5, 1.7, 2.1)
    assert one.ttft == pytest.approx(0.5)
    assert one.tpot == pytest.approx(0.3)
    assert list(one.gaps) == pytest.approx([0.2, 0.4])
    assert one.e2e == pytest.approx(1.1)
    assert outcome(1.0, 1.5).tpot is None


def test_latency_counts_from_when_it_was_due() -> None:
    """A generator that falls behind (or waits for answers) must not hide the wait of users."""
    late = outcome(1.0, 4.5, sent=4.0)
    assert late.ttft == pytest.approx(3.5)
    assert late.e2e == pytest.approx(3.5)
    assert summarize("x", [late], Bounds()).lag == pytest.approx(3.0)
    assert not Bounds(ttft=1.0).good(late)


def test_tokens_that_come_together_share_their_gap() -> None:
    """The mean gap is then the TPOT, whatever the size of the messages."""
    several = outcome(0.0, 1.0, 2.0, 3.0, per=4)
    assert list(several.gaps) == pytest.approx([0.0] * 3 + [0.25] * 8)
    assert several.tpot == pytest.approx(2.0 / 11)
    assert sum(several.gaps) / 11 == pytest.approx(several.tpot)


def test_rates_and_goodput_are_of_the_whole_run() -> None:
    bounds = Bounds(ttft=0.6, tpot=0.25)
    outcomes = [
        outcome(0.0, 0.5, 0.7, 0.9),  # good
        outcome(0.0, 0.9, 1.0, 1.1),  # first token too late
        outcome(0.0, 0.5, 1.0, 2.0),  # too slow
        outcome(1.0, error="overloaded"),
    ]
    found = summarize("x", outcomes, bounds)
    assert (found.requests, found.failed, found.duration) == (4, {"overloaded": 1}, 2.0)
    assert (found.output_tokens, found.prompt_tokens, found.cached_tokens) == (9, 9, 3)
    assert found.output_tokens_s is not None
    assert found.output_tokens_s.value == pytest.approx(4.5)
    assert found.total_tokens_s is not None
    assert found.total_tokens_s.value == pytest.approx(9.0)
    assert found.requests_s is not None
    assert found.requests_s.value == pytest.approx(1.5)
    goodput = found.goodput
    assert goodput is not None
    assert goodput.share is not None
    assert goodput.share.value == pytest.approx(0.25)
    assert goodput.tokens_s is not None
    assert goodput.tokens_s.value == pytest.approx(1.5)
    assert value(found, "ttft", "p50") == pytest.approx(0.5)
    assert value(found, "ttft", "p99") == pytest.approx(0.9)


def test_one_bound_alone_and_a_single_token() -> None:
    assert Bounds(tpot=0.1).good(outcome(0.0, 9.0))
    assert not Bounds(ttft=1.0).good(outcome(0.0, 9.0))
    assert not Bounds(tpot=0.1).good(outcome(0.0)), "no answer is no good answer"
    assert not Bounds()


@pytest.mark.parametrize("outcomes", [[], [outcome(0.0, error="unknown_model")], [outcome(0.0, 1.0)]])
def test_runs_without_much_are_told_all_the_same(outcomes: list[Outcome]) -> None:
    found = summarize("1 at a time", outcomes, Bounds(ttft=1.0))
    text = "\n".join([*render(found, Spent()), *render_sweep([found])])
    assert "1 at a time" in text
    assert "n/a" in text
    assert "nan" not in text


def test_cost_is_what_requests_were_charged_and_idling_for_the_good_tokens() -> None:
    """Two requests of 3 tokens, one good: (0.2 + 0.4 + 0.1 + 0.3 + 0.5) for 3 tokens."""
    good, slow = outcome(0.0, 0.5, 0.7, 0.9), outcome(0.0, 0.5, 5.0, 9.0)
    good.cost = Cost(source="estimated", prefill=0.2, decode=0.4, joules=10.0)
    slow.cost = Cost(source="estimated", prefill=0.1, decode=0.3, joules=30.0)
    before, after = CostStatus(idle=2.0), CostStatus(idle=2.5, currency="EUR")
    found = spent([good, slow, outcome(0.0, error="overloaded")], Bounds(tpot=1.0), before, after)
    assert (found.joules, found.source, found.currency) == (40.0, "estimated", "EUR")
    assert found.per_million == pytest.approx(1e6 * 1.5 / 3)
    text = "\n".join(render(summarize("x", [good, slow], Bounds(tpot=1.0)), found))
    assert "40.0 J, 6.67 J a token" in text
    assert "5e+05 EUR (estimated; prefill 20.0%, decode 46.7%, idle 33.3%)" in text


def test_unknown_cost_is_not_nothing() -> None:
    unknown = outcome(0.0, 0.5)
    unknown.cost = Cost()
    found = spent([unknown], Bounds(), CostStatus(), CostStatus())
    assert (found.joules, found.prefill, found.per_million) == (None, None, None)
    assert spent([], Bounds(), None, None) == Spent()
    assert "n/a" in "\n".join(render(summarize("x", [unknown], Bounds()), found))
