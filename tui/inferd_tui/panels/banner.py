"""What must not be missed: a daemon that is away, stalled or failed models, warnings. Hidden while all is well."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from inferd_tui.frame import Frame
from inferd_tui.panels.panel import Panel, row

MAX_LINES = 3


class Banner(Panel):
    """As many lines as there are troubles, at most a few."""

    DEFAULT_CSS = """
    Banner { height: 0; border: none; background: $error; color: $text; text-style: bold; display: none; }
    """

    def watch_frame(self) -> None:
        count = len(self._texts(self.frame)) if self.frame is not None else 0
        self.display = bool(count)
        self.styles.height = count
        self.redraw()

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        return [row(frame.glyphs.text(text)) for text in self._texts(frame)]

    @staticmethod
    def _texts(frame: Frame) -> list[str]:
        found = list(troubles(frame))
        more = len(found) - MAX_LINES
        return found if more <= 0 else [*found[: MAX_LINES - 1], f"! and {more + 1} more, see the log"]


def troubles(frame: Frame) -> Iterator[str]:
    """Say all that is wrong, the worst first."""
    if frame.lost:
        yield f"! NO NEWS: {frame.lost}; figures are old, trying again"
    status = frame.status
    if status is None:
        return
    if status.state == "draining":
        yield "! DRAINING: the daemon finishes what runs and ends"
    yield from (f"! {text}" for text in status.warnings)
    if frame.dropped:
        yield f"! {frame.dropped} snapshots were skipped: this terminal is too slow"
