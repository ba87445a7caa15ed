"""Ask before something is ended."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from inferd_tui.glyphs import Glyphs


class Confirm(ModalScreen[bool]):
    """Gives True only for `y`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No", key_display="n"),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical {
        width: 60; max-width: 100%; height: auto; padding: 1 2; border: solid $warning; background: $surface;
    }
    """

    def __init__(self, question: str, glyphs: Glyphs) -> None:
        super().__init__(classes="ascii" if glyphs.ascii else None)
        self._question = glyphs.text(question)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(f"{self._question}\n\ny = yes, n = no", id="question", markup=False)
        yield Footer(show_command_palette=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
