"""What the plugins and models screens share: a table of what the daemon answered, and details of one row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from inferd_tui.frame import Frame
from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.banner import Banner
from inferd_tui.panels.table import Column, Table


class Wanted(Message):
    """The screen asks for a command: `name` and, for some, the model it is about."""

    def __init__(self, name: str, model: str = "") -> None:
        super().__init__()
        self.name = name
        self.model = model


class Listing(Screen[None]):
    """Subclasses say which command lists what, and how a row and its details read."""

    COMMAND: ClassVar[str]
    COLUMNS: ClassVar[tuple[Column, ...]]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", key_display="Esc"),
        Binding("r", "refresh_list", "Refresh"),
    ]
    DEFAULT_CSS = """
    Listing #details { height: auto; max-height: 40%; min-height: 3; border-top: solid $primary; }
    """

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(classes="ascii" if glyphs.ascii else None)
        self.glyphs = glyphs

    def compose(self) -> ComposeResult:
        yield Banner(id="banner")
        table = Table(self.COLUMNS, self.COMMAND, id="list")
        table.glyphs = self.glyphs
        yield table
        yield Static("asking the daemon", id="details", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.action_refresh_list()

    def action_refresh_list(self) -> None:
        self.post_message(Wanted(self.COMMAND))

    def show(self, frame: Frame) -> None:
        """Keep the banner true."""
        for banner in self.query(Banner):
            banner.frame = frame

    def answered(self, values: Iterable[object], error: str) -> None:
        """Show what the daemon said."""
        if not error:
            self.take(values)
        for table in self.query(Table):
            if not error:
                table.show(self.rows())
        self._details(error)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._details("")

    def _details(self, error: str) -> None:
        for table, static in zip(self.query(Table), self.query(Static).filter("#details"), strict=False):
            lines = [error] if error else self.details(table.selected)
            static.update("\n".join(map(self.glyphs.text, lines)))

    def take(self, values: Iterable[object]) -> None:
        """Keep the answer."""
        raise NotImplementedError

    def rows(self) -> dict[str, tuple[str, ...]]:
        """Return the cells of all rows by key."""
        raise NotImplementedError

    def details(self, key: str | None) -> list[str]:
        """Return what is to say of the row under the cursor."""
        raise NotImplementedError
