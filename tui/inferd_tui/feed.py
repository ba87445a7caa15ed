"""The daemon as the monitor sees it: its events, and the few commands that people give from there."""

from __future__ import annotations

from typing import Protocol, Self

from inferd_client import Client
from inferd_client.protocol import Event, ModelInfo, PluginInfo, StatusReply

PATIENCE_S = 15.0
"""A daemon publishes many times in this time, whatever it is doing."""


class Source(Protocol):
    """What the monitor needs; a test brings its own. All but `close` and `dropped` may block."""

    @property
    def dropped(self) -> int: ...
    def next_event(self) -> Event: ...
    def cancel(self, request: str) -> str: ...
    def load(self, model: str) -> str: ...
    def unload(self, model: str) -> str: ...
    def models(self) -> tuple[ModelInfo, ...]: ...
    def plugins(self) -> tuple[PluginInfo, ...]: ...
    def close(self) -> None: ...


class Feed:
    """The source over a client."""

    def __init__(self, client: Client, *, patience_s: float = PATIENCE_S) -> None:
        self.client = client
        client.status()  # no daemon: say so at once instead of waiting for events
        self._patience_s = patience_s
        self._events = client.events(timeout=patience_s)
        self._closed = False
        self._dropped = 0

    def next_event(self) -> Event:
        """Wait for the next snapshot or model event. Raises InferdError when none comes, EOFError once closed."""
        for event in self._events:
            return event
        if self._closed:
            raise EOFError("the event stream was closed")
        self._dropped += self._events.dropped
        self._events = self.client.events(timeout=self._patience_s)  # an error had ended the subscription
        return self.next_event()

    def next(self) -> StatusReply:
        """Wait for the next snapshot; model events between are covered by it."""
        while True:
            event = self.next_event()
            if isinstance(event, StatusReply):
                return event

    @property
    def dropped(self) -> int:
        """Events this reader was too slow for."""
        return self._dropped + self._events.dropped

    def cancel(self, request: str) -> str:
        """End a request of whatever client."""
        self.client.cancel(request, anywhere=True)
        return "cancelled"

    def load(self, model: str) -> str:
        return self.client.load(model)

    def unload(self, model: str) -> str:
        return self.client.unload(model)

    def models(self) -> tuple[ModelInfo, ...]:
        return self.client.models()

    def plugins(self) -> tuple[PluginInfo, ...]:
        return self.client.plugins()

    def close(self) -> None:
        """End the subscription and calls in flight. Idempotent."""
        self._closed = True
        self._events.close()
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._events.close()
