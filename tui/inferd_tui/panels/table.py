"""A table that is told all its rows and touches only the cells that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rich.text import Text
from textual.widgets import DataTable

from inferd_tui.glyphs import UNICODE, Glyphs


class Column(NamedTuple):
    """`width` cells at least; of what is left over, `grow` shares."""

    title: str
    width: int
    grow: int = 0
    right: bool = False
    """Numbers, which do not grow; a space keeps them apart from the next column."""


class Table(DataTable[Text]):
    """Rows by key, in the order given. Cells are texts, never markup."""

    DEFAULT_CSS = """
    Table { height: 1fr; border-top: solid $primary; border-title-style: bold; overflow-x: hidden; }
    Table > .datatable--header { text-style: bold; background: $boost; }
    Table:nocolor > .datatable--cursor { text-style: reverse; }
    """

    def __init__(self, columns: Iterable[Column], title: str, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self.glyphs: Glyphs = UNICODE
        self.border_title = title
        self._layout = tuple(columns)
        self._cells: dict[str, tuple[str, ...]] = {}
        self.num_changed = 0
        """Cells written so far, for tests."""

    @property
    def selected(self) -> str | None:
        """Key of the row under the cursor."""
        keys = list(self._cells)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(self, cells: Mapping[str, tuple[str, ...]]) -> None:
        """Make the table equal to `cells`."""
        for key in [key for key in self._cells if key not in cells]:
            self.remove_row(key)
            del self._cells[key]
        kept = list(self._cells)
        if kept != list(cells)[: len(kept)]:
            self._rebuild(cells)
            return
        for key, row in cells.items():
            if key in self._cells:
                self._change(key, row)
            else:
                self._append(key, row)

    def on_resize(self) -> None:
        self._rebuild(dict(self._cells))

    def _change(self, key: str, row: tuple[str, ...]) -> None:
        for column, (old, new) in enumerate(zip(self._cells[key], row, strict=True)):
            if old != new:
                self.update_cell(key, str(column), self._cell(column, new))
                self.num_changed += 1
        self._cells[key] = row

    def _append(self, key: str, row: tuple[str, ...]) -> None:
        if self.columns:
            self.add_row(*(self._cell(i, text) for i, text in enumerate(row)), key=key)
        self._cells[key] = row
        self.num_changed += len(row)

    def _rebuild(self, cells: Mapping[str, tuple[str, ...]]) -> None:
        """Start over, with widths that fit; the cursor stays on its row."""
        selected = self.selected
        self.clear(columns=True)
        self._cells = {}
        for index, (column, width) in enumerate(self._widths()):
            self.add_column(Text(self._placed(index, column.title)), width=width, key=str(index))
        for key, row in cells.items():
            self._append(key, row)
        if selected in self._cells:
            self.move_cursor(row=list(self._cells).index(selected), animate=False)

    def _widths(self) -> Iterable[tuple[Column, int]]:
        left = max(0, self.content_size.width - sum(column.width for column in self._layout))
        shares = sum(column.grow for column in self._layout) or 1
        for column in self._layout:
            yield column, column.width + left * column.grow // shares

    def _cell(self, column: int, text: str) -> Text:
        safe = self.glyphs.text(text)
        return Text(self._placed(column, safe), no_wrap=True, overflow="crop")

    def _placed(self, column: int, text: str) -> str:
        return f"{text:>{self._layout[column].width - 1}} " if self._layout[column].right else text
