"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, text between."""

from __future__ import annotations

from collections.abc import Collection

from .base import Event, Text, ToolParser, held, parse
from .scan import Scan

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """Text until a tag, then an object, then the closing tag, which an answer that ends may leave out."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._raw: str | None = None
        """What came since the opening tag, that included; None outside."""
        self._scan: Scan | None = None
        self._tail: str | None = None
        """What came after the object; None while it is open."""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        rest: str | None = text
        while rest:
            rest = self._outside(rest, events) if self._raw is None else self._inside(rest, events)
        return events

    def finish(self) -> list[Event]:
        text, raw = self._held, self._raw
        call = self._call() if raw is not None and not (self._tail or "").strip() else None
        self._held, self._raw = "", None
        if call is not None:
            return [call]
        return [Text(text + (raw or ""))] if text or raw else []

    def _outside(self, text: str, events: list[Event]) -> str | None:
        text = self._held + text
        before, tag, rest = text.partition(OPEN)
        self._held = "" if tag else text[len(text) - held(text, OPEN) :]
        before = before if tag else text[: len(text) - len(self._held)]
        if before:
            events.append(Text(before))
        if not tag:
            return None
        self._raw, self._scan, self._tail = OPEN, None, None
        return rest

    def _inside(self, text: str, events: list[Event]) -> str | None:
        assert self._raw is not None
        if self._tail is not None:
            return self._closing(text, events)
        if self._scan is None:
            bare = text.lstrip()
            self._raw += text[: len(text) - len(bare)]
            if not bare:
                return None
            if bare[0] != "{":
                return self._give_up(bare, events)
            self._scan, text = Scan(), bare
        used = self._scan.push(text)
        self._raw += text[:used]
        if used is None:
            return None
        self._tail = ""
        return text[used:]

    def _closing(self, text: str, events: list[Event]) -> str | None:
        assert self._raw is not None
        assert self._tail is not None
        tail = self._tail + text
        bare = tail.lstrip()
        if CLOSE.startswith(bare) and bare != CLOSE:
            self._raw, self._tail = self._raw + text, tail
            return None
        call = self._call() if bare.startswith(CLOSE) else None
        if call is None:
            self._raw = self._raw[: len(self._raw) - len(self._tail)]
            return self._give_up(tail, events)
        events.append(call)
        self._raw = None
        return bare[len(CLOSE) :]

    def _give_up(self, rest: str, events: list[Event]) -> str:
        """No call after all: what was held is text, and reading goes on outside."""
        events.append(Text(self._raw or ""))
        self._raw = None
        return rest

    def _call(self) -> Event | None:
        return self.call_of(parse(self._scan.text)) if self._scan is not None and self._tail is not None else None
