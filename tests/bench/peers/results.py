"""Samples of one or more runs: kept as JSON, reduced to medians, spreads and ratios within a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.bench.peers.contestant import METRICS

OURS = "inferd"


@dataclass(frozen=True)
class Sample:
    contestant: str
    """Product and format of the weights."""
    metric: str
    repeat: int
    """From 1; 0 = of the turn that settles who goes on, which counts for those alone who did not."""
    value: float


@dataclass
class Run:
    """What was measured alternately, in one go."""

    machine: str
    started: str
    settings: list[str]
    """Of inferd, over its defaults."""
    samples: list[Sample] = field(default_factory=list)


class Spread:
    """Median, least and greatest of some values."""

    def __init__(self, values: Sequence[float]) -> None:
        self.median, self.low, self.high = statistics.median(values), min(values), max(values)

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def load(paths: Sequence[Path]) -> list[Run]:
    runs = [run for path in paths for run in json.loads(path.read_text())["runs"]]
    return [Run(**{**run, "samples": [Sample(**sample) for sample in run["samples"]]}) for run in runs]


def save(path: Path, runs: Sequence[Run]) -> None:
    path.write_text(json.dumps({"runs": [asdict(run) for run in runs]}, indent=1) + "\n")


def values(runs: Sequence[Run], contestant: str, metric: str) -> dict[tuple[int, int], float]:
    """Return values by (run, repeat): of the counted repeats, where there are any."""
    found = _all_values(runs, contestant, metric)
    return {key: value for key, value in found.items() if key[1]} or found


def _all_values(runs: Sequence[Run], contestant: str, metric: str) -> dict[tuple[int, int], float]:
    return {
        (number, sample.repeat): sample.value
        for number, run in enumerate(runs)
        for sample in run.samples
        if (sample.contestant, sample.metric) == (contestant, metric)
    }


def contestants(runs: Sequence[Run], metric: str) -> list[str]:
    """Return all that were measured, in the order of their first sample."""
    return list(dict.fromkeys(s.contestant for run in runs for s in run.samples if s.metric == metric))


def ratio(runs: Sequence[Run], metric: str, over: str, under: str) -> Spread | None:
    """Compare two contestants in the repeats that have both, the uncounted one if need be; None where there is none."""
    above, below = _all_values(runs, over, metric), _all_values(runs, under, metric)
    both = {key: above[key] / below[key] for key in above if below.get(key)}
    counted = [value for key, value in both.items() if key[1]]
    return Spread(counted or list(both.values())) if both else None


def best(runs: Sequence[Run], metric: str, names: Sequence[str]) -> str | None:
    """Return the contestant among `names` with the best median: one with counted repeats, if any has them."""
    found = {name: series for name in names if (series := values(runs, name, metric))}
    counted = {name: series for name, series in found.items() if any(repeat for _, repeat in series)}
    medians = {name: statistics.median(series.values()) for name, series in (counted or found).items()}
    if not medians:
        return None
    return (max if METRICS[metric].higher_is_better else min)(medians, key=medians.__getitem__)


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield Markdown: for each metric every contestant, and how the best of ours stands to it."""
    yield "| metric | contestant | median (spread) | unit | runs | inferd / it |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, metric in METRICS.items():
        found = contestants(runs, name)
        ours = best(runs, name, [c for c in found if c.startswith(OURS)])
        for contestant in found:
            measured = list(values(runs, contestant, name).values())
            compared = ratio(runs, name, ours, contestant) if ours else None
            yield (
                f"| {metric.title} | {contestant} | {Spread(measured)} | {metric.unit} | {len(measured)} "
                f"| {'' if compared is None or contestant == ours else compared} |"
            )
