"""A conversation with a model: history, commands, and answers that can be cut short."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferd.cli.commands.run import describe
from inferd.cli.connect import explain
from inferd.cli.output import lines, note, write
from inferd.cli.progress import LoadDisplay
from inferd.cli.prompt import Reader
from inferd_client.errors import ConnectionFailed, ConnectionLost, InferdError
from inferd_client.protocol import Message

if TYPE_CHECKING:
    from inferd_client import Client

QUIT = object()


class Conversation:
    """One chat session."""

    def __init__(
        self, client: Client, reader: Reader, *, model: str, system: str | None, options: dict[str, Any]
    ) -> None:
        self.client = client
        self.reader = reader
        self.model = model
        self.system = system
        self.options = options
        self.history: list[Message] = []
        self.stats = False
        self.commands: dict[str, tuple[Callable[[str], object], str]] = {
            "help": (self._help, "list these commands"),
            "reset": (self._reset, "forget the conversation"),
            "retry": (self._retry, "answer the last message anew"),
            "system": (self._system, "TEXT: set the instructions; without a text, show them"),
            "model": (self._model, "NAME: go on with another model; without a name, show it"),
            "set": (self._set, "NAME=VALUE: a sampling option, e.g. temperature=0; without one, show all"),
            "stats": (self._stats, "show token counts and times after each answer, or stop that"),
            "history": (self._history, "show the conversation"),
            "exit": (lambda _: QUIT, "leave (also Ctrl-D)"),
        }

    def run(self) -> None:
        """Read and answer until the user leaves. Raises ConnectionFailed, ConnectionLost."""
        while (text := self._read()) is not None:
            if not text.strip():
                continue
            if text.startswith("/") and "\n" not in text:
                if self._command(text[1:]) is QUIT:
                    return
            else:
                self.answer(text)

    def answer(self, text: str) -> None:
        """Stream an answer. Ctrl-C keeps what has come; a failed request leaves the history as it was."""
        self.history.append(Message(role="user", content=text))
        try:
            said = self._stream()
        except (ConnectionFailed, ConnectionLost):
            raise
        except InferdError as error:
            self.history.pop()
            message, _ = explain(error) or (str(error), 1)
            note(message)
            return
        self.history.append(Message(role="assistant", content=said))

    def _stream(self) -> str:
        pieces: list[str] = []
        display = LoadDisplay(self.model or "model")
        options: dict[str, Any] = {**self.options, "on_progress": display.update}
        stream = self.client.chat(self._messages(), stream=True, model=self.model, **options)
        try:
            with stream, display:
                for piece in stream:
                    display.close()
                    pieces.append(piece.text)
                    write(piece.text)
            lines([""])
            if self.stats:
                note(describe(stream.result()))
        except KeyboardInterrupt:
            lines([""])
            note("the answer was cancelled; what came of it stays in the conversation")
        return "".join(pieces)

    def _messages(self) -> list[Message]:
        return [Message(role="system", content=self.system), *self.history] if self.system else self.history

    def _read(self) -> str | None:
        while True:
            try:
                return self.reader.read()
            except KeyboardInterrupt:
                lines([""])
                note("Ctrl-D or /exit leaves")

    def _command(self, text: str) -> object:
        name, _, argument = text.strip().partition(" ")
        found = self.commands.get(name)
        if found is None:
            note(f"there is no command /{name}; /help lists them")
            return None
        return found[0](argument.strip())

    def _help(self, _: str) -> None:
        lines(f"/{name:8} {text}" for name, (_run, text) in self.commands.items())

    def _reset(self, _: str) -> None:
        self.history.clear()

    def _retry(self, _: str) -> None:
        while self.history and self.history[-1].role != "user":
            self.history.pop()
        if not self.history:
            note("nothing was said yet")
            return
        self.answer(self.history.pop().content or "")

    def _system(self, text: str) -> None:
        if text:
            self.system = text
        note(f"instructions: {self.system or 'none'}")

    def _model(self, name: str) -> None:
        if name:
            self.model = name
        note(f"model: {self.model or 'the default of the daemon'}")

    def _set(self, text: str) -> None:
        from inferd.config.errors import ConfigError
        from inferd.config.layers import parse_setting
        from inferd_client.calls import SAMPLING_FIELDS

        if not text:
            note(", ".join(f"{k}={v}" for k, v in self.options.items()) or "all sampling options are at their defaults")
            return
        try:
            name, value = parse_setting(text)
        except ConfigError as error:
            note(str(error))
            return
        if name not in SAMPLING_FIELDS:
            note(f"no sampling option {name}; there are {', '.join(sorted(SAMPLING_FIELDS))}")
            return
        self.options[name] = value

    def _stats(self, _: str) -> None:
        self.stats = not self.stats
        note("figures after each answer" if self.stats else "no figures")

    def _history(self, _: str) -> None:
        lines(f"{m.role}: {m.content}" for m in self.history)
