"""Every definition on engines that speculate, preempt, cancel and end after one token, with a clock that is told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inferd.link import StepReport
from inferd.metrics import Metrics, TokenClock, timings
from inferd_client.protocol import Timings
from tests.engine.toy import OracleDraft, Rig


@dataclass
class Seen:
    """What the front notes of one request."""

    arrival: float
    first_scheduled: float | None = None
    clock: TokenClock = field(default_factory=TokenClock)
    gaps: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """Time of each token."""


class Watched:
    """An engine whose reports are measured as the front measures them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.metrics = Metrics()
        self.seen: dict[str, Seen] = {}
        self.scheduled: dict[str, float] = {}
        """When each request first was in a plan, noted apart."""
        self._previous: StepReport | None = None

    def submit(self, key: str, prompt: list[int], count: int, **options: object) -> None:
        self.seen[key] = Seen(self.rig.clock.now)
        self.rig.submit(key, prompt, count, **options)

    def step(self, seconds: float) -> None:
        self.rig.clock.now += seconds
        before = self.rig.clock.now + 0.001
        report = self.rig.step()
        for key in {**report.charges.prefill, **report.charges.decode}:
            self.scheduled.setdefault(key, before)
        now = self.rig.clock.now = self.rig.clock.now + seconds
        self.metrics.step(report.stats, self._previous.stats if self._previous else None)
        self._previous = report
        for output in report.outputs:
            seen = self.seen[output.key]
            if output.first_scheduled is not None and seen.first_scheduled is None:
                seen.first_scheduled = output.first_scheduled
            seen.gaps += seen.clock.record(now, len(output.ids))
            seen.arrivals += [now] * len(output.ids)

    def run(self, rng: random.Random) -> None:
        while self.rig.engine.has_work:
            self.step(rng.choice((0.01, 0.2, 1.0)))

    def measured(self, key: str) -> Timings:
        seen = self.seen[key]
        return timings(seen.arrival, seen.first_scheduled, [seen.clock], self.rig.clock.now)


def holds(watched: Watched, key: str) -> None:
    """The definitions, from the times of tokens alone."""
    seen, found = watched.seen[key], watched.measured(key)
    first, last, count = seen.arrivals[0], seen.arrivals[-1], len(seen.arrivals)
    assert found.queue_s == pytest.approx(watched.scheduled[key] - seen.arrival)
    assert found.ttft_s == pytest.approx(first - seen.arrival)
    assert found.prefill_s == pytest.approx(first - watched.scheduled[key])
    assert found.e2e_s == pytest.approx(last - seen.arrival)
    assert len(seen.gaps) == count - 1
    assert sum(seen.gaps) == pytest.approx(last - first)
    if count == 1:
        assert found.tpot_s is None
    else:
        assert found.tpot_s == pytest.approx((last - first) / (count - 1))
        assert max(seen.gaps) >= found.tpot_s * (1 - 1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 6))
def test_speculation(seed: int, wrong: float, most: int) -> None:
    """Drafted, accepted and emitted are three counts; tokens that come together share the gap before them."""
    rng = random.Random(seed)
    watched = Watched(Rig(max_draft=most, drafter=OracleDraft(wrong=wrong, rng=rng)))
    for i in range(4):
        watched.submit(f"r{i}", [rng.randrange(90) for _ in range(rng.randint(1, 20))], rng.randint(1, 20))
    watched.run(rng)
    for i in range(4):
        holds(watched, f"r{i}")
    count = watched.metrics.counters
    drafted, accepted, emitted, drafts = (
        count[f"inferd_spec_decode_num_{name}_total"]
        for name in ("draft_tokens", "accepted_tokens", "emitted_tokens", "drafts")
    )
    assert accepted <= drafted
    assert accepted <= emitted <= accepted + drafts
    results = watched.rig.results.values()
    assert (drafted, accepted) == (sum(r.drafted for r in results), sum(r.accepted for r in results))
    assert count["inferd_decode_tokens_total"] == sum(len(r.ids) for r in results)
    if wrong == 0:
        assert accepted == drafted


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_preemption_keeps_the_first_times(seed: int) -> None:
    rng = random.Random(seed)
    watched = Watched(Rig(blocks=16, batch=4, chunk=4, budget=8))
    for i in range(4):
        watched.submit(f"r{i}", [rng.randrange(90) for _ in range(rng.randint(9, 30))], 14 + 4 * i)
        for _ in range(rng.randint(1, 6)):
            watched.step(0.1)
    watched.run(rng)
    assume(watched.metrics.counters["inferd_num_preemptions_total"] > 0)
    assert any(result.preemptions for result in watched.rig.results.values())
    for i in range(4):
        holds(watched, f"r{i}")


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(0, 8))
def test_cancel_in_any_step(seed: int, steps: int) -> None:
    """What came before the end counts; without a token there is no latency but the time until the end."""
    rng = random.Random(seed)
    watched = Watched(Rig(chunk=8, budget=8))
    watched.submit("gone", [5] * 30, 40)
    watched.submit("stays", [6] * 12, 6)
    for _ in range(steps):
        watched.step(0.5)
    watched.rig.engine.abort("gone")
    ended = watched.rig.clock.now
    seen, found = (
        watched.seen["gone"],
        timings(0.0, watched.seen["gone"].first_scheduled, [watched.seen["gone"].clock], ended),
    )
    watched.run(rng)
    holds(watched, "stays")
    if seen.arrivals:
        holds(watched, "gone")
    else:
        assert (found.ttft_s, found.prefill_s, found.tpot_s, found.e2e_s) == (None, None, None, ended)


def test_one_token() -> None:
    watched = Watched(Rig())
    watched.submit("one", [1, 2, 3], 1)
    watched.run(random.Random(1))
    holds(watched, "one")
    assert watched.measured("one").tpot_s is None
    assert watched.seen["one"].gaps == []


def test_waiting_counts_as_queue_time() -> None:
    watched = Watched(Rig(batch=1))
    watched.submit("first", [1] * 4, 5)
    watched.submit("second", [2] * 4, 2)
    watched.run(random.Random(2))
    holds(watched, "first")
    holds(watched, "second")
    assert (watched.measured("second").queue_s or 0) > (watched.measured("first").e2e_s or 0) - 2
