"""What the streams of both faces share: all but the waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import protocol as p
from .assembly import Assembly, Patience
from .call import Item, Sink
from .calls import Planned
from .driver import Driver
from .errors import InferdError, RequestTimeout
from .events import SeqCounter
from .mailbox import Arrival, WaitedInVain
from .results import Completion, Piece

if TYPE_CHECKING:
    from .base import ClientBase

MAX_WAITING_EVENTS = 256
"""Unread events kept by an event stream; newer ones are dropped and counted."""


class StreamBase:
    """One generation: its call, what has come, how it ended."""

    def __init__(self, client: ClientBase, driver: Driver, planned: Planned, sink: Sink) -> None:
        assert isinstance(planned.message, p.Generate)
        self.id = planned.message.id
        self._client = client  # kept alive: its collection would close the driver
        self._driver = driver
        self._assembly = Assembly(planned.message, planned.on_progress)
        self._patience = Patience(planned.timeouts or client.timeouts)
        self._error: InferdError | None = None
        self._call = client.new_call(planned, sink)
        driver.submit(self._call)

    @property
    def completion(self) -> Completion:
        """What has come so far; whole once the stream has ended."""
        return self._assembly.completion

    @property
    def progress(self) -> p.Progress | None:
        """The latest progress report that was read."""
        return self._assembly.progress

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self._abandon()

    def _abandon(self) -> None:
        """Stop the generation at the daemon unless it has ended."""
        if not self._assembly.done:
            self._assembly.closed()
            self._driver.abandon(self._call)

    def _add(self, arrival: Arrival[Item]) -> Piece | None:
        self._patience.check(arrival.at, arrival.item)
        return self._assembly.take(arrival.item)

    def _broke(self, error: WaitedInVain | InferdError) -> InferdError:
        """End the stream for what was raised while waiting or adding; return what the caller is to see."""
        self._error = self._patience.ran_out() if isinstance(error, WaitedInVain) else error
        self._abandon()
        return self._assembly.explain(self._error)

    def _outcome(self) -> Completion:
        if self._error is not None:
            raise self._error
        return self.completion


class EventStreamBase:
    """A subscription to the daemon's events."""

    def __init__(
        self,
        client: ClientBase,
        driver: Driver,
        timeout: float | None,
        put: Callable[[p.Event | InferdError], None],
        waiting: Callable[[], int],
    ) -> None:
        self._client = client
        self._driver = driver
        self._timeout = timeout
        self._counter = SeqCounter()
        self._open = True
        self._sink = lambda event: put(event) if waiting() < MAX_WAITING_EVENTS else None
        driver.subscribe(self._sink)

    @property
    def dropped(self) -> int:
        """Events that were skipped because this side read too slowly."""
        return self._counter.dropped

    def __del__(self) -> None:
        if hasattr(self, "_sink"):
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        if self._open:
            self._open = False
            self._driver.unsubscribe(self._sink)

    def _accept(self, event: p.Event | InferdError) -> p.Event:
        if isinstance(event, InferdError):
            self._unsubscribe()
            raise event
        return self._counter.take(event)

    def _waited_in_vain(self) -> RequestTimeout:
        return RequestTimeout("idle", self._timeout or 0.0)
