"""Llama 3: the answer is `{"name": ..., "parameters": {...}}`, maybe after <|python_tag|>, several with `;` between."""

from __future__ import annotations

from collections.abc import Collection

from .base import Call, Event, Text, ToolParser, parse
from .scan import Scan

TAG = "<|python_tag|>"
BETWEEN = " \t\r\n;"


class Llama3Parser(ToolParser):
    """Calls from the start of the answer on; the first thing that is none makes the rest text."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._raw = ""
        """Not yet reported: blanks, a head of the tag, an open object."""
        self._scan: Scan | None = None
        self._is_text = False
        self._num_calls = 0

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        rest: str | None = text
        while rest:
            if self._is_text:
                events.append(Text(rest))
                break
            rest = self._object(rest, events) if self._scan is not None else self._between(rest, events)
        return events

    def finish(self) -> list[Event]:
        raw, self._raw = self._raw, ""
        return [Text(raw)] if raw.strip(BETWEEN) or (raw and not self._num_calls) else []

    def _between(self, text: str, events: list[Event]) -> str | None:
        whole = self._raw + text
        bare = whole.lstrip(BETWEEN if self._num_calls else BETWEEN[:-1])
        if not bare or (TAG.startswith(bare) and bare != TAG):
            self._raw = whole
            return None
        bare = bare.removeprefix(TAG).lstrip()
        self._raw = whole[: len(whole) - len(bare)]
        if not bare:
            return None
        if bare[0] == "{":
            self._scan = Scan()
            return bare
        return self._give_up(bare, events)

    def _object(self, text: str, events: list[Event]) -> str | None:
        assert self._scan is not None
        used = self._scan.push(text)
        self._raw += text[:used]
        if used is None:
            return None
        call: Call | None = self.call_of(parse(self._scan.text))
        self._scan = None
        if call is None:
            return self._give_up(text[used:], events)
        events.append(call)
        self._raw = ""
        self._num_calls += 1
        return text[used:]

    def _give_up(self, rest: str, events: list[Event]) -> str:
        if self._raw:
            events.append(Text(self._raw))
        self._raw, self._is_text = "", True
        return rest
