"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call."""

from __future__ import annotations

import re
from collections.abc import Collection

from .base import Call, Event, Text, ToolParser, held, parse
from .scan import Scan

MARKER = "[TOOL_CALLS]"
_HEAD = re.compile(
    r"\s*(?:(?P<array>\[)(?=\s*(?:\{|\]))|(?P<name>[\w.-]{1,64})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{))"
)
MAX_HEAD = 256
"""Characters between the marker and a bracket; more is no call."""


class MistralParser(ToolParser):
    """Text until the marker, then an array of calls or a name and its arguments."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._raw: str | None = None
        """What came since the marker, that included; None outside."""
        self._name: str | None = None
        self._scan: Scan | None = None

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        rest: str | None = text
        while rest:
            if self._raw is None:
                rest = self._outside(rest, events)
            elif self._scan is None:
                rest = self._head(rest, events)
            else:
                rest = self._value(rest, events)
        return events

    def finish(self) -> list[Event]:
        text = self._held + (self._raw or "")
        self._held, self._raw, self._scan = "", None, None
        return [Text(text)] if text else []

    def _outside(self, text: str, events: list[Event]) -> str | None:
        text = self._held + text
        before, marker, rest = text.partition(MARKER)
        self._held = "" if marker else text[len(text) - held(text, MARKER) :]
        before = before if marker else text[: len(text) - len(self._held)]
        if before:
            events.append(Text(before))
        if not marker:
            return None
        self._raw = MARKER
        return rest or None

    def _head(self, text: str, events: list[Event]) -> str | None:
        assert self._raw is not None
        head = self._raw[len(MARKER) :] + text
        match = _HEAD.match(head)
        if match is None:
            self._raw = MARKER + head
            return self._give_up("", events) if len(head) > MAX_HEAD else None
        self._name, self._scan = match["name"], Scan()
        start = match.start("array") if match["array"] else match.end()
        self._raw = MARKER + head[:start]
        return head[start:]

    def _value(self, text: str, events: list[Event]) -> str | None:
        assert self._raw is not None
        assert self._scan is not None
        used = self._scan.push(text)
        self._raw += text[:used]
        if used is None:
            return None
        calls = self._calls(self._scan.text)
        self._scan = None
        if calls is None:
            return self._give_up(text[used:], events)
        events.extend(calls)
        self._raw = None
        return text[used:]

    def _calls(self, text: str) -> list[Call] | None:
        """Return the calls of an array or a named object, None when one of them is unsound."""
        value = parse(text)
        if self._name is not None:
            value = [{"name": self._name, "arguments": value}]
        if not isinstance(value, list) or not value:
            return None
        found = [self.call_of(entry) for entry in value]
        return [call for call in found if call is not None] if all(found) else None

    def _give_up(self, rest: str, events: list[Event]) -> str:
        events.append(Text(self._raw or ""))
        self._raw = None
        return rest
