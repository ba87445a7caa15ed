"""How `inferd traffic show` presents a record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from inferd.traffic import figures
from inferd_tui.units import NA, number, percent, rate, seconds, table

if TYPE_CHECKING:
    from inferd_client.protocol import TrafficReport

BAR = 40
"""Columns of the longest bar."""


def summary(report: TrafficReport) -> dict[str, Any]:
    """Return the figures of a record for scripts; quantiles by share."""
    return {
        "model": report.model,
        "since": report.since,
        "until": report.until,
        "requests": report.requests,
        "sequences": figures.inputs(report).total(),
        "requests_per_s": figures.rate(report),
        "gap_ms": _quantiles(Counter(dict(report.gaps_ms))),
        "isl": _quantiles(figures.inputs(report)),
        "osl": _quantiles(figures.outputs(report)),
        "total": _quantiles(figures.totals(report)),
        "joint": {_share(q): box._asdict() if (box := figures.box(report, q)) else None for q in figures.QUANTILES},
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "reuse_percent": {str(share): count for share, count in report.reuse_percent},
        "ends": report.ends,
    }


def render(report: TrafficReport) -> Iterator[str]:
    """Yield the lines of one model's record."""
    isl, osl = figures.inputs(report), figures.outputs(report)
    span = seconds(report.until - report.since)
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.since))
    yield f"{report.model}: {number(report.requests)} requests since {since} ({span})"
    ends = ", ".join(f"{count} {end}" for end, count in sorted(report.ends.items()))
    cached = percent(report.cached_tokens, report.prompt_tokens)
    yield f"while they came {rate(figures.rate(report))} a second; ends: {ends or NA}; prompt tokens cached: {cached}"
    yield ""
    yield from _quantile_table(report, isl, osl)
    yield ""
    yield from histogram("ISL (input tokens)", isl)
    yield ""
    yield from histogram("OSL (output tokens)", osl)
    yield ""


def histogram(title: str, counts: Counter[int]) -> Iterator[str]:
    """Yield one line for each doubling of the length."""
    octaves: Counter[int] = Counter()
    for bound, count in counts.items():
        octaves[max(0, bound.bit_length() - 1)] += count
    yield title
    most = max(octaves.values(), default=1)
    for octave in range(min(octaves, default=0), max(octaves, default=-1) + 1):
        low, high = (1 << octave) if octave else 0, (2 << octave) - 1
        bar = "#" * -(-BAR * octaves[octave] // most)
        yield f"{low:>8} to {high:<8} {octaves[octave]:>8}  {bar}".rstrip()


def _quantile_table(report: TrafficReport, isl: Counter[int], osl: Counter[int]) -> list[str]:
    rows = [
        ("ISL", isl),
        ("OSL", osl),
        ("ISL + OSL", figures.totals(report)),
        ("gap between arrivals, ms", Counter(dict(report.gaps_ms))),
    ]
    cells = [[name, *(number(figures.quantile(counts, q)) for q in figures.QUANTILES)] for name, counts in rows]
    boxes = [figures.box(report, q) for q in figures.QUANTILES]
    cells.append(["both at once (ISL, OSL)", *(f"{b.input}, {b.output}" if b else NA for b in boxes)])
    return table(("AT MOST", *(f"P{100 * q:.0f}" for q in figures.QUANTILES)), cells)


def _quantiles(counts: Counter[int]) -> dict[str, int | None]:
    return {_share(q): figures.quantile(counts, q) for q in figures.QUANTILES}


def _share(quantile: float) -> str:
    return f"p{100 * quantile:.0f}"
