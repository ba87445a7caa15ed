"""One choice of a chat: from pieces of text to reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inferd_client import Piece

from .markers import with_marker
from .template import Spoken
from .thinking import ThinkSplitter, Thought
from .tools import Call, Event, ToolParser

Delta = dict[str, Any]
"""What a chunk adds to a message, in OpenAI's form."""


class AnswerReader:
    """Turns the pieces of one choice into deltas."""

    def __init__(self, thinking: ThinkSplitter, parser: ToolParser | None, spoken: Spoken | None) -> None:
        self._thinking = thinking
        self._parser = parser
        self._spoken = spoken
        self._blanks = ""
        """Held while tools are parsed: blanks around calls are not content."""
        self.num_calls = 0

    def push(self, piece: Piece) -> list[Delta]:
        """Return the deltas that a piece makes certain, all that is left with the last one."""
        marker = self._spoken.format.marker if self._spoken is not None else ""
        text = with_marker(piece, self._spoken.marker, marker) if self._spoken is not None and marker else piece.text
        deltas = self._thought(self._thinking.push(text))
        return [*deltas, *self._finish()] if piece.finish is not None else deltas

    def reason(self, finish: str) -> str:
        return "tool_calls" if self.num_calls and finish == "stop" else finish

    def _finish(self) -> Iterable[Delta]:
        yield from self._thought(self._thinking.finish())
        if self._parser is not None:
            yield from self._events(self._parser.finish())
        if self._blanks and not self.num_calls:
            yield {"content": self._blanks}

    def _thought(self, thought: Thought) -> list[Delta]:
        deltas: list[Delta] = [{"reasoning_content": thought.reasoning}] if thought.reasoning else []
        if not thought.text:
            return deltas
        if self._parser is None:
            return [*deltas, {"content": thought.text}]
        return [*deltas, *self._events(self._parser.push(thought.text))]

    def _events(self, events: Iterable[Event]) -> Iterable[Delta]:
        for event in events:
            if isinstance(event, Call):
                yield from self._call(event)
            elif text := self._trimmed(event.text):
                yield {"content": text}

    def _trimmed(self, text: str) -> str:
        text = self._blanks + text
        certain = text.rstrip()
        self._blanks = text[len(certain) :]
        return certain

    def _call(self, call: Call) -> Iterable[Delta]:
        """A call is named first; its arguments follow."""
        assert self._spoken is not None
        self._blanks = ""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        named = {"name": call.name, "arguments": ""}
        yield {
            "tool_calls": [{"index": index, "id": self._spoken.format.new_id(), "type": "function", "function": named}]
        }
        yield {"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]}


@dataclass(slots=True)
class Answer:
    """The whole message that deltas add up to."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        if "content" in delta:
            self.content = (self.content or "") + delta["content"]
        if "reasoning_content" in delta:
            self.reasoning = (self.reasoning or "") + delta["reasoning_content"]
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                self.tool_calls.append({key: value for key, value in part.items() if key != "index"})
            else:
                self.tool_calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]

    @property
    def message(self) -> dict[str, Any]:
        content = self.content if self.content is not None or self.tool_calls else ""
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message
