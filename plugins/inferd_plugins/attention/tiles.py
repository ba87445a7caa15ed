"""Cut a ragged batch into attention calls of bounded memory. Plain integers, no tensors.

Short sequences (decode, verify) of equal query length go into one padded call; a long prefill chunk is
cut along its query rows, so that no mask of the whole prompt against all its keys ever exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHORT = 16
"""Longest query run that is padded together with others."""
MAX_KEYS = 1 << 16
"""Most gathered keys, padding included, of one padded call."""
MAX_SCORES = 1 << 19
"""Most mask entries of one tile of a long chunk."""


class Padded(NamedTuple):
    """Neighbouring sequences of one query length, keys padded to the longest."""

    first: int
    """Index of the first sequence; they follow each other in the batch."""
    start_row: int
    query_len: int
    lows: tuple[int, ...]
    """First position each can see."""
    contexts: tuple[int, ...]

    @property
    def width(self) -> int:
        """Gathered keys of each sequence."""
        return max(context - low for context, low in zip(self.contexts, self.lows, strict=True))


class Tile(NamedTuple):
    """Query rows of a long chunk and the keys they can see, relative to the chunk."""

    first_row: int
    end_row: int
    first_key: int
    """Counted from `Long.low`."""
    end_key: int


class Long(NamedTuple):
    """A prefill chunk, computed a tile at a time."""

    first: int
    """Index of its sequence."""
    start_row: int
    query_len: int
    low: int
    context: int

    @property
    def whole(self) -> bool:
        """The chunk is its own whole context: causal attention without any mask."""
        return self.query_len == self.context

    def tiles(self, window: int | None) -> Iterator[Tile]:
        rows = max(SHORT, MAX_SCORES // max(1, self.context - self.low))
        before = self.context - self.query_len
        for first in range(0, self.query_len, rows):
            end = min(first + rows, self.query_len)
            first_key = 0 if window is None else max(0, before + first - window + 1) - self.low
            yield Tile(first, end, first_key, before + end - self.low)


def cut(query_lens: Sequence[int], contexts: Sequence[int], window: int | None) -> list[Padded | Long]:
    """Return the calls that cover a batch, in row order."""
    calls: list[Padded | Long] = []
    row = 0
    for index, (length, context) in enumerate(zip(query_lens, contexts, strict=True)):
        low = 0 if window is None else max(0, context - length - window + 1)
        if length > SHORT:
            calls.append(Long(index, row, length, low, context))
        else:
            last = calls[-1] if calls else None
            if isinstance(last, Padded) and last.query_len == length and _joins(last, context - low):
                calls[-1] = last._replace(lows=(*last.lows, low), contexts=(*last.contexts, context))
            else:
                calls.append(Padded(index, row, length, (low,), (context,)))
        row += length
    return calls


def _joins(call: Padded, width: int) -> bool:
    """Keep a call within its key budget, and at least half of its keys real."""
    widest, count = max(call.width, width), len(call.contexts) + 1
    real = width + sum(context - low for context, low in zip(call.contexts, call.lows, strict=True))
    return widest * count <= MAX_KEYS and 2 * real >= widest * count
