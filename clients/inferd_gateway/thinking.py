"""Reasoning apart from the answer: `<think>...</think>` at its start."""

from __future__ import annotations

from typing import NamedTuple

from .tools.base import held

OPEN, CLOSE = "<think>", "</think>"


class Thought(NamedTuple):
    reasoning: str
    text: str


class ThinkSplitter:
    """Splits one answer, piece by piece. `inside` says that the prompt has opened the tag already."""

    def __init__(self, *, inside: bool = False) -> None:
        self._state = "inside" if inside else "start"
        self._held = ""
        self._fresh = True
        """Blanks at the start of the reasoning or the text that follows it are dropped."""

    def push(self, text: str) -> Thought:
        if self._state == "text":
            return Thought("", self._text(text))
        text, self._held = self._held + text, ""
        if self._state == "start":
            return self._start(text)
        return self._inside(text)

    def finish(self) -> Thought:
        rest, self._held = self._held, ""
        return Thought(rest, "") if self._state == "inside" else Thought("", rest)

    def _start(self, text: str) -> Thought:
        bare = text.lstrip()
        if bare.startswith(OPEN):
            self._state = "inside"
            return self._inside(bare[len(OPEN) :])
        if OPEN.startswith(bare):
            self._held = text
            return Thought("", "")
        self._state, self._fresh = "text", False
        return Thought("", text)

    def _inside(self, text: str) -> Thought:
        if self._fresh:
            text = text.lstrip("\r\n")
            self._fresh = not text
        reasoning, tag, rest = text.partition(CLOSE)
        if not tag:
            certain = text[: len(text) - held(text, CLOSE)].rstrip()
            self._held = text[len(certain) :]
            return Thought(certain, "")
        self._state, self._fresh = "text", True
        return Thought(reasoning.rstrip(), self._text(rest))

    def _text(self, text: str) -> str:
        if self._fresh:
            text = text.lstrip("\r\n")
            self._fresh = not text
        return text
