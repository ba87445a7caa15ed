"""Runs as one picture: distributions of the latencies, and throughput over time or over the load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from inferd.bench.serve.load import Outcome
    from inferd.bench.serve.run import Run
    from inferd.bench.serve.statistics import Estimate
    from inferd.bench.serve.summary import Bounds, Summary


def save(path: Path, title: str, runs: Sequence[Run]) -> None:
    """Write a PNG (or what the suffix says) of one or several runs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    (first, second), (third, fourth) = figure.subplots(2, 2)
    bounds = runs[0].summary.bounds
    _distribution(first, "TTFT", runs, lambda o: [o.ttft] if o.ttft is not None else [], bounds.ttft)
    _distribution(second, "TPOT", runs, lambda o: [o.tpot] if o.tpot is not None else [], bounds.tpot)
    _distribution(third, "ITL", runs, lambda o: list(o.gaps), None)
    if len(runs) > 1:
        _over_load(fourth, [run.summary for run in runs])
    else:
        _over_time(fourth, runs[0].summary, runs[0].outcomes, bounds)
    figure.savefig(path, dpi=110)


def _distribution(axes: Any, name: str, runs: Sequence[Run], of: Any, bound: float | None) -> None:
    for summary, _, outcomes in runs:
        values = np.sort([1000 * value for o in outcomes if not o.error for value in of(o)])
        if len(values):
            axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", label=summary.load)
    if bound is not None:
        axes.axvline(1000 * bound, color="grey", linestyle="--", label="bound")
    axes.set(xlabel=f"{name}, ms", ylabel="share of samples", ylim=(0, 1.02))
    _finish(axes)


def _over_time(axes: Any, summary: Summary, outcomes: Sequence[Outcome], bounds: Bounds) -> None:
    bins = np.linspace(0, max(summary.duration, 1e-3), 41)
    for label, chosen in (("all", outcomes), ("good", [o for o in outcomes if bounds.good(o)] if bounds else [])):
        events = [event for o in chosen for event in o.tokens]
        if events:
            counts, _ = np.histogram([e[0] for e in events], bins, weights=[e[1] for e in events])
            axes.stairs(counts / (bins[1] - bins[0]), bins, label=f"{label} requests")
    axes.set(xlabel="time, s", ylabel="output tokens a second", ylim=(0, None))
    _finish(axes)


def _over_load(axes: Any, summaries: Sequence[Summary]) -> None:
    places = np.arange(len(summaries))
    _errors(axes, places, [s.output_tokens_s for s in summaries], "all requests")
    if any(s.goodput for s in summaries):
        _errors(axes, places, [s.goodput.tokens_s if s.goodput else None for s in summaries], "good requests")
    axes.set(ylabel="output tokens a second", ylim=(0, None))
    axes.set_xticks(places, [s.load for s in summaries], rotation=20, fontsize=8)
    _finish(axes)


def _errors(axes: Any, places: np.ndarray, found: Sequence[Estimate | None], label: str) -> None:
    values = [e.value if e else np.nan for e in found]
    low = [e.value - e.low if e and e.low is not None else 0.0 for e in found]
    high = [e.high - e.value if e and e.high is not None else 0.0 for e in found]
    axes.errorbar(places, values, [np.maximum(low, 0), np.maximum(high, 0)], marker="o", capsize=3, label=label)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
