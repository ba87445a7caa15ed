"""The full-screen monitor: threads read the daemon, messages carry what they read, screens draw frames of it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from inferd_client.errors import ClientClosed, InferdError
from inferd_client.protocol import StatusReply
from inferd_tui.feed import Source
from inferd_tui.frame import Frame
from inferd_tui.glyphs import UNICODE, Glyphs
from inferd_tui.history import History
from inferd_tui.journal import Journal
from inferd_tui.messages import Answered, Lost, ModelChanged, Snapshot
from inferd_tui.screens.confirm import Confirm
from inferd_tui.screens.dashboard import CancelWanted, Dashboard
from inferd_tui.screens.help import Help
from inferd_tui.screens.listing import Listing, Wanted
from inferd_tui.screens.models import Models
from inferd_tui.screens.plugins import Plugins

REDRAW_S = 0.5
"""At most two redraws a second."""
SILENCE_S = 3.0
"""Without news for this long, or thrice the usual gap, the daemon counts as away."""


def time_of_day() -> str:
    return time.strftime("%H:%M:%S")


class Monitor(App[None]):
    """Holds what was read; all drawing is done by the screens."""

    TITLE = "inferd"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "monitor.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("m", "open('models')", "Models"),
        Binding("g", "open('plugins')", "Plugins"),
        Binding("t", "theme", "Theme"),
        Binding("question_mark", "open('help')", "Help", key_display="?"),
    ]

    def __init__(
        self,
        source: Source,
        *,
        glyphs: Glyphs = UNICODE,
        light: bool = False,
        time_text: Callable[[], str] = time_of_day,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        plain = "NO_COLOR" in os.environ  # textual turns colours into greys where it was not told so first
        super().__init__(ansi_color=True if plain else None)
        self.source = source
        self.glyphs = glyphs
        self.paused = False
        self.num_redraws = 0
        self._clock = clock
        self._history = History()
        self._journal = Journal(time_text)
        self._status: StatusReply | None = None
        self._heard = clock()
        self._gap = 0.0
        self._lost = ""
        self._new = False
        self._frame = self._make_frame()
        self._leaving = threading.Event()
        if self.no_color:
            self.theme = "ansi-light" if light else "ansi-dark"
        elif light:
            self.theme = "textual-light"

    def get_default_screen(self) -> Screen[Any]:
        return Dashboard(classes="ascii" if self.glyphs.ascii else None)

    def on_mount(self) -> None:
        self.set_interval(REDRAW_S, self._redraw_if_new)
        self._start(self._read)

    def on_unmount(self) -> None:
        """Free the threads, which may wait for the daemon."""
        self._leaving.set()
        self.source.close()

    # --- news -----------------------------------------------------------------------------------

    def on_snapshot(self, message: Snapshot) -> None:
        first = self._status is None or bool(self._lost)
        now = self._clock()
        self._gap = max(0.9 * self._gap, now - self._heard)
        self._heard, self._lost, self._status = now, "", message.status
        self._history.add(message.status)
        self._journal.snapshot(message.status)
        self._new = True
        if first:
            self._redraw_if_new()

    def on_model_changed(self, message: ModelChanged) -> None:
        self._journal.model(message.event)
        self._new = True
        if isinstance(self.screen, Models):
            self.screen.action_refresh_list()

    def on_lost(self, message: Lost) -> None:
        silent = self._clock() - self._heard
        if silent < max(SILENCE_S, 3 * self._gap):
            return
        if not self._lost:
            self._journal.say(f"no news of the daemon: {message.why}")
        self._lost = f"no snapshot for {silent:.0f} s"
        self._new = True

    def on_answered(self, message: Answered) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Listing) and message.command == screen.COMMAND:
                screen.answered(message.value or (), message.error)
                return
        if message.command in ("models", "plugins"):
            return  # its screen is closed by now
        text = f"{message.command}: {message.error or message.value or 'done'}"
        self._journal.say(text)
        self._new = True
        severity = "error" if message.error else "information"
        self.notify(self.glyphs.text(text), severity=severity, markup=False)

    # --- drawing --------------------------------------------------------------------------------

    def _make_frame(self) -> Frame:
        return Frame(
            status=self._status,
            history=self._history,
            glyphs=self.glyphs,
            lost=self._lost,
            paused=self.paused,
            dropped=self.source.dropped,
            log=self._journal.lines,
        )

    def _redraw_if_new(self) -> None:
        if self._new and not self.paused:
            self.redraw()

    def redraw(self) -> None:
        """Draw what was read last."""
        self._new = False
        self._frame = self._make_frame()
        self._draw()

    def _draw(self) -> None:
        self.num_redraws += 1
        for screen in self.screen_stack:
            if isinstance(screen, Dashboard | Listing):
                screen.show(self._frame)

    # --- keys -----------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Keep what is on the screen, or follow again."""
        self.paused = not self.paused
        self._frame = replace(self._frame, paused=self.paused, history=self._history.copy())
        self._new = True
        if self.paused:
            self._draw()
        else:
            self._redraw_if_new()

    def action_theme(self) -> None:
        if not self.no_color:
            self.theme = "textual-dark" if self.theme == "textual-light" else "textual-light"

    async def action_open(self, name: str) -> None:
        """Open a screen in place of the one that is open."""
        kinds: dict[str, type[Help | Models | Plugins]] = {"help": Help, "models": Models, "plugins": Plugins}
        screen = kinds[name](self.glyphs)
        if len(self.screen_stack) > 1:
            await self.switch_screen(screen)
        else:
            await self.push_screen(screen)
        if isinstance(screen, Listing):
            screen.show(self._frame)

    def on_cancel_wanted(self, message: CancelWanted) -> None:
        request = message.request
        question = f"Cancel request {request.id} of {request.client}?"
        self._ask(question, f"cancel {request.id}", partial(self.source.cancel, request.id))

    def on_wanted(self, message: Wanted) -> None:
        source, model = self.source, message.model
        if message.name == "unload":
            self._ask(
                f"Unload model {model} once its requests are done?", f"unload {model}", partial(source.unload, model)
            )
        elif message.name == "load":
            self._command(f"load {model}", partial(source.load, model))
        else:
            self._command(message.name, {"models": source.models, "plugins": source.plugins}[message.name])

    def _ask(self, question: str, command: str, call: Callable[[], Any]) -> None:
        def decided(yes: bool | None) -> None:
            if yes:
                self._command(command, call)

        if isinstance(self.screen, Confirm):
            return
        self.push_screen(Confirm(question, self.glyphs), decided)

    # --- threads --------------------------------------------------------------------------------

    def _command(self, name: str, call: Callable[[], Any]) -> None:
        self._start(partial(self._run_command, name, call))

    def _start(self, work: Callable[[], None]) -> None:
        """Run in a thread that never keeps the program from ending."""
        threading.Thread(target=work, daemon=True).start()

    def _tell(self, message: Message) -> None:
        """Post from a thread; the monitor may be gone by now."""
        if not self._leaving.is_set():
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                self.post_message(message)

    def _run_command(self, name: str, call: Callable[[], Any]) -> None:
        try:
            self._tell(Answered(name, call()))
        except InferdError as error:
            self._tell(Answered(name, error=str(error)))

    def _read(self) -> None:
        while not self._leaving.is_set():
            try:
                event = self.source.next_event()
            except (EOFError, ClientClosed):
                return
            except InferdError as error:
                self._tell(Lost(str(error)))
                self._leaving.wait(0.2)
            else:
                self._tell(Snapshot(event) if isinstance(event, StatusReply) else ModelChanged(event))
