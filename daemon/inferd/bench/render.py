"""The report of the offline benchmark as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferd.bench.offline import Report, Row

HEADERS = ("PHASE", "", "MEDIAN", "LOW", "HIGH", "UNIT")


def cells(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table under HEADERS."""
    for row in report.rows:
        yield row.case, row.value.replace("_", " "), *map(number, (row.median, row.low, row.high)), row.unit


def number(value: float) -> str:
    """Three digits that matter, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def picture(report: Report, path: Path) -> None:
    """Write a PNG (or what the suffix says): rates as bars with the range of the repeats, one panel a unit.

    Raises ImportError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rates = [row for row in report.rows if row.unit == "tokens/s"]
    others = [row for row in report.rows if row.unit == "s"]
    figure = Figure(figsize=(10, 1.5 + 0.35 * (len(rates) + len(others))), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{report.model}, {report.machine}", fontsize=10)
    panels = [(rows, unit) for rows, unit in ((rates, "tokens/s"), (others, "s")) if rows]
    heights = [len(rows) for rows, _ in panels]
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, (rows, unit) in zip(axes, panels, strict=True):
        _bars(axis, rows, unit)
    figure.savefig(path, dpi=110)


def _bars(axis: Any, rows: list[Row], unit: str) -> None:
    names = [f"{row.case}, {row.value.replace('_', ' ')}".removesuffix(", ") for row in rows]
    medians = [row.median for row in rows]
    spread = [[row.median - row.low for row in rows], [row.high - row.median for row in rows]]
    axis.barh(names, medians, xerr=spread, color="#4c78a8", ecolor="#333333", capsize=2)
    axis.bar_label(axis.containers[-1], [f" {number(value)}" for value in medians], fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel=unit)
    axis.margins(x=0.12)
    axis.grid(axis="x", alpha=0.3)
