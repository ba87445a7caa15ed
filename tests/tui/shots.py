"""Pictures of the monitor as SVG, the same on every machine: fixed time, made-up source, normalised ids."""

from __future__ import annotations

import re
from pathlib import Path

from textual.pilot import Pilot

from inferd_client.protocol import StatusReply
from inferd_tui.app import Monitor
from inferd_tui.glyphs import UNICODE, Glyphs
from inferd_tui.messages import Snapshot
from tests.tui.sample import SampleSource

STORED = Path(__file__).parent / "shots"
SIZES = ((80, 24), (120, 40), (200, 60))


def monitor(source: SampleSource, *, glyphs: Glyphs = UNICODE, light: bool = False) -> Monitor:
    """Return a monitor whose clocks stand still."""
    return Monitor(source, glyphs=glyphs, light=light, time_text=lambda: "12:00:00", clock=lambda: 0.0)


async def feed(app: Monitor, pilot: Pilot[None], snapshots: list[StatusReply]) -> None:
    """Hand over snapshots as if each had come alone, and redraw once."""
    for status in snapshots:
        app.on_snapshot(Snapshot(status))
    app.redraw()
    await pilot.pause()


def picture(app: Monitor, title: str = "inferd top") -> str:
    """Return the screen as SVG without what differs from run to run."""
    return re.sub(r"terminal-\d+", "terminal", app.export_screenshot(title=title)) + "\n"


def text(app: Monitor) -> list[str]:
    """Return the characters on the screen, line by line."""
    width = app.size.width
    return ["".join(s.text for s in strip)[:width] for strip in app.screen._compositor.render_strips()]


def stored(width: int, height: int) -> Path:
    return STORED / f"{width}x{height}.svg"
