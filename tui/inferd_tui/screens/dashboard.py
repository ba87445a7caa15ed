"""The main screen: all panels at once."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from inferd_client.protocol import RequestStatus
from inferd_tui.frame import Frame
from inferd_tui.panels.banner import Banner
from inferd_tui.panels.header import Header
from inferd_tui.panels.latency import Latency
from inferd_tui.panels.log import Log
from inferd_tui.panels.memory import Memory
from inferd_tui.panels.occupancy import Occupancy
from inferd_tui.panels.panel import Panel
from inferd_tui.panels.requests import Requests
from inferd_tui.panels.throughput import Throughput


class CancelWanted(Message):
    """The user pressed the key that cancels the chosen request."""

    def __init__(self, request: RequestStatus) -> None:
        super().__init__()
        self.request = request


class Dashboard(Screen[None]):
    """Two columns of panels, four on wide terminals, one on narrow ones; the rest is requests and log."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal"), (160, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (34, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "cancel", "Cancel")]

    def compose(self) -> ComposeResult:
        yield Header(id="header")
        yield Banner(id="banner")
        with VerticalScroll(id="body", can_focus=False):
            with Grid(id="panels"):
                yield Memory("memory", id="memory")
                yield Occupancy("batch", id="occupancy")
                yield Latency("latency: p50, p95, p99", id="latency")
                yield Throughput("throughput", id="throughput")
            yield Requests(id="requests")
            yield Log("log", id="log")
        yield Footer(show_command_palette=False)

    def show(self, frame: Frame) -> None:
        """Hand a frame to all panels."""
        for panel in self.query(Panel):
            panel.frame = frame
        for table in self.query(Requests):
            table.frame = frame

    def action_cancel(self) -> None:
        for table in self.query(Requests):
            if table.chosen is not None:
                self.post_message(CancelWanted(table.chosen))
