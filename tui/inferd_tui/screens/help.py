"""What the keys do and what the words mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from inferd_tui.glyphs import Glyphs
from inferd_tui.panels.requests import WHY

KEYS = {
    "q": "quit",
    "p": "pause: keep what is on the screen; p goes on",
    "c": "cancel the request under the cursor, after a question",
    "up, down": "move the cursor of a table; page and home keys too",
    "m": "models: the store and what is loaded; there l loads, u unloads",
    "g": "plugins: all of them, and why each was or was not chosen",
    "t": "light or dark theme",
    "?": "this page; Esc goes back from any page",
}
WORDS = {
    "exactness": "how far the output may differ from the plain computation: bit, token, distribution, approximate",
    "KV free": "the rest of the KV pool; on a host a block takes memory when it is first touched",
    "activations": "scratch of steps: kept buffers, and on a GPU what its allocator holds",
    "process": "memory of inferd beside those: programs and libraries",
    "others": "used memory that is not inferd's",
    "ttft": "arrival of a request to its first token",
    "tpot": "mean time of its later tokens",
    "itl": "gap between two tokens",
    "queue": "arrival to first scheduled",
    "prefill": "first scheduled to first token",
    "decode": "time of an engine step charged to its decode rows",
    "verify": "the same for steps that verified drafts",
    "e2e": "arrival to last token",
    "MFU": "operations of prefill against the rate of matrix products measured on this machine, last minute",
    "MBU": "bytes that decode reads against the rate of reading measured on this machine, last minute",
    "weights/KV": "time of decode by what it reads: weights, and keys and values of the contexts",
    "cost": "power and hardware for a million output tokens of requests within the bounds, since the start",
    "source": "measured: by counters of GPU or CPU; estimated: configured watts, or the hardware's price alone",
    "n/a": "nobody measures it here, or nothing was seen yet",
}


class Help(Screen[None]):
    """One page of text; scrolls on small terminals."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark", "dismiss", "Back", key_display="Esc")]
    DEFAULT_CSS = """
    Help VerticalScroll { padding: 0 1; }
    """

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(classes="ascii" if glyphs.ascii else None)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("\n".join(text()), id="help", markup=False)
        yield Footer(show_command_palette=False)


def text() -> list[str]:
    """Return the lines of the page."""
    sections = {"KEYS": KEYS, "WHY A REQUEST WAITS": WHY, "WORDS": WORDS}
    return [line for title, entries in sections.items() for line in ("", title, *_entries(entries))][1:]


def _entries(entries: dict[str, str]) -> list[str]:
    return [f"  {name:<11} {meaning}" for name, meaning in entries.items()]
