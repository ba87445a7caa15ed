"""The full-screen monitor: so far the plain view, kept up to date."""

from __future__ import annotations

from typing import ClassVar, Protocol

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static
from textual.worker import get_current_worker

from inferd_client.errors import InferdError
from inferd_client.protocol import StatusReply
from inferd_tui.escape import clean_line
from inferd_tui.plain import render


class Source(Protocol):
    """What the monitor reads; see `inferd_tui.feed.Feed`."""

    @property
    def dropped(self) -> int: ...
    def next(self) -> StatusReply: ...


class Monitor(App[None]):
    """Shows the newest snapshot. Reading happens in a thread, so keys always answer."""

    TITLE = "inferd"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
    ]

    def __init__(self, feed: Source) -> None:
        super().__init__()
        self.feed = feed
        self.paused = False

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("waiting for the first snapshot", id="view", markup=False)
        yield Static("", id="note", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.run_worker(self._read, thread=True, exclusive=True)

    def action_pause(self) -> None:
        """Keep what is on the screen, or follow again."""
        self.paused = not self.paused
        self.query_one("#note", Static).update("paused: p goes on" if self.paused else "")

    def show(self, snapshot: StatusReply) -> None:
        """Put a snapshot on the screen."""
        if self.paused:
            return
        self.query_one("#view", Static).update("\n".join(render(snapshot)))
        dropped = self.feed.dropped
        self.query_one("#note", Static).update(f"{dropped} snapshots were skipped" if dropped else "")

    def report(self, text: str) -> None:
        """Say why there is nothing new."""
        self.query_one("#note", Static).update(clean_line(text))

    def _read(self) -> None:
        worker = get_current_worker()
        while not worker.is_cancelled:
            try:
                snapshot = self.feed.next()
            except InferdError as error:
                if not worker.is_cancelled:
                    self.call_from_thread(self.report, str(error))
                continue
            except EOFError:
                return
            if not worker.is_cancelled:
                self.call_from_thread(self.show, snapshot)
