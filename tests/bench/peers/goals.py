"""The goals for the CPU path, and how a measurement stands to them: rows for the README."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench.peers.contestant import METRICS
from tests.bench.peers.results import OURS, Run, Sample, Spread, best, contestants, ratio, values

SHIPPED = "Q4_1"


@dataclass(frozen=True)
class Goal:
    """`ours` over the best of the peers whose name contains one of `against`, in `metric`."""

    metric: str
    ours: str
    against: tuple[str, ...]
    reach: float
    then: float | None
    """What to reach after that; None = no more."""

    def peers(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if any(part in name for part in self.against)]

    def ratio(self, runs: Sequence[Run]) -> tuple[str, Spread] | None:
        """Return the peer and the ratio to it; None where either was not measured."""
        peer = best(runs, self.metric, self.peers(contestants(runs, self.metric)))
        compared = ratio(runs, self.metric, self.ours, peer) if peer else None
        return (peer, compared) if peer and compared else None

    def verdict(self, value: float) -> str:
        sign = 1 if METRICS[self.metric].higher_is_better else -1
        if sign * value < sign * self.reach:
            return "missed"
        return "reached" if self.then is None or sign * value < sign * self.then else "beyond"


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
        Goal("decode0", shipped, (f"llama.cpp {SHIPPED}",), 2.0, None),
        Goal("decode0", shipped, (f"sweep {SHIPPED}",), 0.75, 0.9),
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


def contenders(turn: Sequence[Sample], wanted: Sequence[Goal | Bound], near: float) -> set[str]:
    """Return who must be measured again after one turn: all that a goal may come to be judged by.

    These are ours, and of the peers of each goal those within `near` of the best.
    """
    found: set[str] = set()
    for goal in wanted:
        seen = {sample.contestant: sample.value for sample in turn if sample.metric == goal.metric}
        if isinstance(goal, Bound):
            found.update(name for name in seen if name == f"{OURS} {SHIPPED}")
        elif goal.ours in seen and (peers := goal.peers(list(seen))):
            rising = METRICS[goal.metric].higher_is_better
            top = (max if rising else min)(seen[peer] for peer in peers)
            found |= {peer for peer in peers if (seen[peer] / top if rising else top / seen[peer]) >= near}
            found.add(goal.ours)
    return found


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
            f"| {goal.reach:g}x{'' if goal.then is None else f', {goal.then:g}x'} | {_times(compared)} | {verdict} |"
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
