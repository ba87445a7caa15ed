"""Snapshots of the daemon, from its events socket."""

from __future__ import annotations

from typing import Self

from inferd_client import Client
from inferd_client.protocol import StatusReply

PATIENCE_S = 15.0
"""A daemon publishes many times in this time, whatever it is doing."""


class Feed:
    """Yields one snapshot after the other; model events between them are covered by the next one."""

    def __init__(self, client: Client, *, patience_s: float = PATIENCE_S) -> None:
        self.client = client
        client.status()  # no daemon: say so at once instead of waiting for events
        self._events = client.events(timeout=patience_s)

    def next(self) -> StatusReply:
        """Wait for the next snapshot. Raises RequestTimeout when none comes."""
        for event in self._events:
            if isinstance(event, StatusReply):
                return event
        raise EOFError("the event stream was closed")

    @property
    def dropped(self) -> int:
        """Events this reader was too slow for."""
        return self._events.dropped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
