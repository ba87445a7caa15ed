"""How much memory the requests of clients may hold together, so that a full queue of large prompts is no way in."""

from __future__ import annotations

import sys
from typing import Any

from inferd.front.errors import Refusal
from inferd_client.protocol import Code, Generate, Render, Tokenize

ID_BYTES = 40
"""A token id in a list: the pointer and the number."""
TEXT_FACTOR = 10
"""A text is held once more as token ids: about one for four characters."""
RETRY_MS = 1000


class ByteBudget:
    """Bytes held by unfinished requests and text calls, against a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, weight: int) -> None:
        """Count what a message holds. Raises Refusal when the limit would be passed."""
        if self.used + weight > self.limit:
            text = f"unfinished requests hold {self.used} bytes and this one would {weight}, the limit is {self.limit}"
            raise Refusal(
                Code.OVERLOADED,
                f"{text} (daemon.max_pending_bytes)",
                limit=self.limit,
                retry_after_ms=RETRY_MS,
                retry_safe=True,
            )
        self.used += weight

    def give(self, weight: int) -> None:
        self.used -= weight


def weigh(message: Generate | Tokenize | Render) -> int:
    """Return the bytes that a message holds while it waits, roughly."""
    if isinstance(message, Tokenize):
        return TEXT_FACTOR * sys.getsizeof(message.text)
    ids = message.prompt_ids or () if isinstance(message, Generate) else ()
    texts: list[Any] = [message.tools, message.template_args]
    texts += [message.prompt] if isinstance(message, Generate) else []
    for turn in message.messages or ():
        texts += (turn.role, turn.content, turn.name, turn.tool_calls, turn.tool_call_id, turn.reasoning_content)
    return ID_BYTES * len(ids) + TEXT_FACTOR * _size(texts)


def _size(value: Any) -> int:
    """Add up nested lists and dicts, without recursion."""
    total, left = 0, [value]
    while left:
        item = left.pop()
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            left += (*item.keys(), *item.values())
        elif isinstance(item, list):
            left += item
    return total
