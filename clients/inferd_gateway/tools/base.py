"""What all parsers share: events, the contract, and when a JSON object counts as a call."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A whole, sound call."""

    name: str
    arguments: str
    """JSON of an object."""


Event = Text | Call


class ToolParser(ABC):
    """Splits one answer into text and calls, piece by piece.

    A call is reported when it is whole: what turns out not to be one comes back as the text it was, and a delta that
    was sent cannot be taken back.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)

    @abstractmethod
    def push(self, text: str) -> list[Event]:
        """Take the next text and return what it makes certain."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """Return what was held back; the answer is over."""

    def call_of(self, value: Any) -> Call | None:
        """Return the call that a JSON value describes, None where it describes none of the tools."""
        if not isinstance(value, dict) or value.get("name") not in self.names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = parse(arguments)
        if not isinstance(arguments, dict):
            return None
        return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def parse(text: str) -> Any:
    """Return the JSON value of `text`; None where it is not JSON (or null, which is no call either)."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def held(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may be the head of `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
