"""Latencies by phase: the median and the tails of the last minutes, and how the median went."""

from __future__ import annotations

from rich.text import Text

from inferd_client.protocol import Latency as Percentiles
from inferd_client.protocol import StatusReply
from inferd_tui.frame import Frame
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.panel import Panel, row
from inferd_tui.units import seconds

PHASES = ("ttft", "tpot", "itl", "queue", "prefill", "decode", "verify", "e2e")
"""In order of interest: small panels cut the last ones off."""
FIXED = 8 + 3 * 9


class Latency(Panel):
    """A row for each phase; those without samples read n/a."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        if frame.status is None:
            return []
        return [_phase(name, frame, width) for name in PHASES]


def _phase(name: str, frame: Frame, width: int) -> Text:
    assert frame.status is not None
    found = frame.status.latency.get(name, Percentiles())
    figures = "".join(f"{seconds(value):>9}" for value in (found.p50, found.p95, found.p99))
    return row(f"{name:<8}", figures, (_spark(name, frame, frame.glyphs, width - FIXED - 1), "cyan"))


def _spark(name: str, frame: Frame, glyphs: Glyphs, width: int) -> str:
    def median(status: StatusReply) -> float | None:
        found = status.latency.get(name)
        return found.p50 if found is not None else None

    return " " + glyphs.spark(frame.history.gauge(median), width) if width > 0 else ""
