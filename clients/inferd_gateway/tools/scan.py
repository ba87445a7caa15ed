"""Find the end of a JSON object or array as its text comes in, each character looked at once."""

from __future__ import annotations


class Scan:
    """Reads from an opening bracket on."""

    def __init__(self) -> None:
        self.text = ""
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def push(self, text: str) -> int | None:
        """Take more text; return how many of its characters belong to the value once that has ended."""
        for i, char in enumerate(text):
            if self._step(char):
                self.text += text[: i + 1]
                return i + 1
        self.text += text
        return None

    def _step(self, char: str) -> bool:
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = False
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False
