"""What both faces of the event stream share: subscription and the count of dropped events."""

from __future__ import annotations

from . import protocol as p


class SeqCounter:
    """Counts the gaps in the `seq` of events: a slow reader is skipped by the daemon, never waited for."""

    def __init__(self) -> None:
        self.dropped = 0
        self._instance: str | None = None
        self._last: int | None = None

    def take(self, event: p.Event) -> p.Event:
        """Note an event and return it."""
        if isinstance(event, p.StatusReply) and event.instance != self._instance:
            self._instance, self._last = event.instance, None
        if self._last is not None and event.seq > self._last + 1:
            self.dropped += event.seq - self._last - 1
        self._last = event.seq
        return event
