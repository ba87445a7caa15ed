"""Times at which requests end unserved."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from inferd.engine.request import Sequence

Limit = Literal["deadline", "queue"]


class _Entry(NamedTuple):
    at: float
    order: int
    """Breaks ties, so that nothing behind it is compared."""
    kind: Limit
    sequences: list[Sequence]
    """The request's unfinished sequences: the scheduler's own list, empty once it ended."""


class Due(NamedTuple):
    kind: Limit
    at: float
    sequences: list[Sequence]


class Deadlines:
    """A heap, so that a step without a due request costs one comparison."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float | None, kind: Limit, sequences: list[Sequence]) -> None:
        if at is not None:
            self._order += 1
            heapq.heappush(self._heap, _Entry(at, self._order, kind, sequences))

    def due(self, now: float) -> list[Due]:
        """Take out what is past its time: unfinished requests, and for `queue` unscheduled ones."""
        found: list[Due] = []
        while self._heap and self._heap[0].at <= now:
            entry = heapq.heappop(self._heap)
            scheduled = any(seq.first_scheduled is not None for seq in entry.sequences)
            if entry.sequences and not (entry.kind == "queue" and scheduled):
                found.append(Due(entry.kind, entry.at, entry.sequences))
        return found

    def trim(self, num_requests: int) -> None:
        """Drop entries of ended requests once they are the most part."""
        if len(self._heap) > 4 * num_requests:
            self._heap = [entry for entry in self._heap if entry.sequences]
            heapq.heapify(self._heap)
