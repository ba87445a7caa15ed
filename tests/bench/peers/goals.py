"""The goals for the CPU path, and how a measurement stands to them: rows for the README."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench.peers.contestant import METRICS
from tests.bench.peers.results import Run, Spread, best, contestants, ratio, values

SHIPPED = "Q4_1"


@dataclass(frozen=True)
class Goal:
    """`ours` over the best of the peers whose name contains one of `against`, in `metric`."""

    metric: str
    ours: str
    against: tuple[str, ...]
    reach: float
    then: float

    def ratio(self, runs: Sequence[Run]) -> tuple[str, Spread] | None:
        """Return the peer and the ratio to it; None where either was not measured."""
        peers = [c for c in contestants(runs, self.metric) if any(part in c for part in self.against)]
        peer = best(runs, self.metric, peers)
        compared = ratio(runs, self.metric, self.ours, peer) if peer else None
        return (peer, compared) if peer and compared else None

    def verdict(self, value: float) -> str:
        if METRICS[self.metric].higher_is_better:
            passed = [value >= self.reach, value >= self.then]
        else:
            passed = [value <= self.reach, value <= self.then]
        return "beyond" if all(passed) else "reached" if passed[0] else "missed"


@dataclass(frozen=True)
class Bound:
    """A value of ours that must stay under a number of its own."""

    metric: str
    reach: float
    then: float


ANY = ("llama.cpp", "OpenVINO")


def goals(shipped: str = f"inferd {SHIPPED}", small: str = "inferd Q4_0") -> list[Goal | Bound]:
    """Return the goals; `shipped` and `small` name our contestants on the shipped file and on pure Q4_0."""
    return [
        Goal("decode0", shipped, (f"llama.cpp {SHIPPED}",), 2.0, 2.0),
        Goal("decode0", small, ("llama.cpp Q4_0",), 1.1, 1.3),
        Goal("decode2048", shipped, ANY, 1.5, 2.0),
        Goal("prompt512", shipped, ("OpenVINO",), 1.1, 1.4),
        Goal("prompt2048", shipped, ("OpenVINO",), 1.1, 1.4),
        Goal("batch8", shipped, ANY, 1.8, 2.5),
        Goal("batch32", shipped, ANY, 1.5, 2.2),
        Goal("TTFT p95", shipped, ("llama.cpp",), 0.26, 0.15),
        Goal("TPOT p50", shipped, ("llama.cpp",), 0.28, 0.15),
        Goal("batch32 memory", shipped, ("OpenVINO",), 1.0, 1.0),
        Goal("batch32 memory", shipped, ("llama.cpp",), 1.0, 1.0),
        Bound("cold start", 4.0, 2.5),
        Bound("load", 0.8, 0.5),
    ]


def goal_rows(runs: Sequence[Run], wanted: Sequence[Goal | Bound] | None = None) -> Iterator[str]:
    """Yield the Markdown table of all goals that were measured."""
    yield "| goal | against | reach, then | measured (spread) | |"
    yield "| --- | --- | --- | --- | --- |"
    for goal in goals() if wanted is None else wanted:
        yield from _bound(runs, goal) if isinstance(goal, Bound) else _goal(runs, goal)


def _goal(runs: Sequence[Run], goal: Goal) -> Iterator[str]:
    found = goal.ratio(runs)
    if found is not None:
        peer, compared = found
        verdict = goal.verdict(compared.median)
        yield (
            f"| {METRICS[goal.metric].title}, {goal.ours.removeprefix('inferd ')} | {peer} "
            f"| {goal.reach:g}x, {goal.then:g}x | {_times(compared)} | {verdict} |"
        )


def _bound(runs: Sequence[Run], bound: Bound) -> Iterator[str]:
    ours = best(runs, bound.metric, [c for c in contestants(runs, bound.metric) if c.startswith("inferd")])
    if ours is None:
        return
    spread, metric = Spread(list(values(runs, ours, bound.metric).values())), METRICS[bound.metric]
    verdict = "beyond" if spread.median <= bound.then else "reached" if spread.median <= bound.reach else "missed"
    unit = metric.unit
    yield f"| {metric.title} | | {bound.reach:g} {unit}, {bound.then:g} {unit} | {spread} {unit} | {verdict} |"


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f}x ({spread.low:.2f} to {spread.high:.2f})"
