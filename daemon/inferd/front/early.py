"""Cancels that overtake their request: the two travel on different sockets."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0
"""How long a cancel waits for its request."""
MAX_WAITING = 256
RECENT = 1024
"""Ids of ended requests that are known: a cancel of one of them is late, not early."""


class EarlyCancels:
    """Of one session."""

    __slots__ = ("_ended", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}
        self._ended: deque[str] = deque(maxlen=RECENT)

    def note(self, request_id: str, now: float) -> None:
        """Keep a cancel that names no unfinished request, unless one of this id has ended lately."""
        if request_id in self._ended:
            return
        self._waiting[request_id] = now
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def take(self, request_id: str, now: float) -> bool:
        """Return whether a request that comes now was cancelled already."""
        noted = self._waiting.pop(request_id, None)
        return noted is not None and now - noted <= WINDOW_S

    def ended(self, request_id: str) -> None:
        self._ended.append(request_id)
