"""Rows of a comparison and the table of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.levers import Experiment

NOISE = 0.05
"""A median ratio closer to 1 than this, or an interval that holds 1, counts as no effect."""


@dataclass(frozen=True)
class Row:
    """One metric of one lever: medians of both sides, and on / off with its interval."""

    lever: str
    metric: str
    on: str
    off: str
    on_median: float
    off_median: float
    ratio: float
    low: float
    high: float
    verdict: str
    expect: str

    @staticmethod
    def of(
        lever: str,
        metric: str,
        pairs: Sequence[tuple[float, float]],
        interval: Callable[[Sequence[float]], tuple[float, float]],
        higher_is_better: bool,
        experiment: Experiment,
    ) -> Row:
        ratios = [a / b if b else float("inf") for a, b in pairs]
        low, high = interval(ratios)
        ratio = statistics.median(ratios)
        better = ratio > 1 if higher_is_better else ratio < 1
        unclear = low <= 1 <= high or abs(ratio - 1) < NOISE
        return Row(
            lever=lever,
            metric=metric,
            on=experiment.on.name,
            off=experiment.off.name,
            on_median=statistics.median(a for a, _ in pairs),
            off_median=statistics.median(b for _, b in pairs),
            ratio=ratio,
            low=low,
            high=high,
            verdict="nothing" if unclear else "better" if better else "worse",
            expect=experiment.expect,
        )


def print_table(rows: Sequence[Row], title: str) -> None:
    """Print Markdown, so that the table can go into a page as it is."""
    print(f"\n{title}\n")
    print("| lever | metric | on | off | on / off (95 % interval) | effect |")
    print("| --- | --- | --- | --- | --- | --- |")
    for r in rows:
        print(
            f"| {r.lever} | {r.metric} | {r.on}: {r.on_median:.4g} | {r.off}: {r.off_median:.4g} "
            f"| {r.ratio:.2f} ({r.low:.2f} to {r.high:.2f}) | {r.verdict} |"
        )
