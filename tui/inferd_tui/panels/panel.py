"""The base of all drawn panels: lines of text of which only changed ones are painted again."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from inferd_tui.frame import Frame


class Panel(Widget):
    """Draws `lines` of its frame. Texts are never read as markup."""

    frame: reactive[Frame | None] = reactive(None, repaint=False, always_update=True)
    DEFAULT_CSS = """
    Panel { height: 1fr; border-top: solid $primary; border-title-style: bold; }
    """

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.border_title = title or None
        self._shown: list[Text] = []
        self._strips: list[Strip] = []
        self.num_painted = 0
        """Lines painted so far, for tests."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        """Return what to show in the given space."""
        raise NotImplementedError

    def watch_frame(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self._shown.clear()
        self.redraw()

    def redraw(self) -> None:
        """Draw the frame; ask for a repaint of the lines that differ from before."""
        frame, size = self.frame, self.content_size
        if frame is None or size.width < 1:
            return
        lines = self.lines(frame, size.width, size.height)[: max(0, size.height)]
        lines += [Text()] * (len(self._shown) - len(lines))
        changed = [y for y, line in enumerate(lines) if y >= len(self._shown) or line != self._shown[y]]
        if not changed:
            return
        self._strips[len(lines) :] = []
        for y in changed:
            self._strips[y : y + 1] = [self._strip(lines[y], size.width)]
        self._shown = lines
        self.num_painted += len(changed)
        self.refresh(*(Region(0, y, size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        strip = self._strips[y] if y < len(self._strips) else Strip.blank(width)
        return strip.adjust_cell_length(width).apply_style(self.rich_style)

    def _strip(self, line: Text, width: int) -> Strip:
        return Strip(line.render(self.app.console)).adjust_cell_length(width)


def row(*parts: str | tuple[str, str]) -> Text:
    """Return a line of plain strings and (string, style) pairs; nothing in them is markup."""
    return Text.assemble(*parts, end="", no_wrap=True)
