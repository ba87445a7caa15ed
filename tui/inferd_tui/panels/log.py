"""The newest lines of the journal."""

from __future__ import annotations

from rich.text import Text

from inferd_tui.frame import Frame
from inferd_tui.panels.panel import Panel, row


class Log(Panel):
    """The newest at the bottom."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        shown = frame.log[-height:] if height > 0 else ()
        return [row(frame.glyphs.text(text)) for text in shown]
