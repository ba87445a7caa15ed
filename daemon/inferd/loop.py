"""The one thread of the front, and of a text process: a poller with handlers, and timers."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import zmq

MAX_WAIT_S = 1.0
PAUSE_S = 1.0
"""A turn that is late by more did not run: the process or the machine was paused, or it was very busy."""


class Timer:
    """A call due at a time; `cancel` forgets it."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Loop:
    """Wait for sockets, file descriptors and timers; call their handlers, earliest registered first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.paused_s = 0.0
        """Time in which nothing could be heard: it must not count as the silence of others."""
        self._looked = clock()
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], object]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = count()
        self._dead_bound = 1024

    def add(self, source: zmq.Socket[bytes] | int, handler: Callable[[], object]) -> None:
        """Call `handler` whenever `source` can be read."""
        self._handlers[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def remove(self, source: zmq.Socket[bytes] | int) -> None:
        if self._handlers.pop(source, None) is not None:
            self._poller.unregister(source)

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Call `action` once, `delay_s` from now."""
        timer = Timer(self.clock() + delay_s, action)
        heapq.heappush(self._timers, (timer.when, next(self._serial), timer))
        if len(self._timers) > self._dead_bound:
            self._forget_cancelled()
        return timer

    def run_once(self) -> None:
        """Handle what is ready, waiting for it if nothing is."""
        timeout_ms = self._timeout_ms()
        ready = self._poller.poll(timeout_ms)
        self._look(timeout_ms / 1000)
        for source, _ in ready:
            handler = self._handlers.get(source)  # an earlier handler may have removed it
            if handler is not None:
                handler()
        now = self._look()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.action is not None:
                timer.action()

    @property
    def awake(self) -> float:
        """The clock without the pauses, for judging how long others have been silent."""
        return self.clock() - self.paused_s

    def _look(self, waited_s: float = 0.0) -> float:
        """Note whether it took longer than wanted to come here; return the time."""
        now = self.clock()
        late = now - self._looked - waited_s
        self._looked = now
        if late > PAUSE_S:
            self.paused_s += late
        return now

    def _timeout_ms(self) -> int:
        wait = self._timers[0][0] - self.clock() if self._timers else MAX_WAIT_S
        return int(1000 * min(MAX_WAIT_S, max(0.0, wait)) + 0.999)

    def _forget_cancelled(self) -> None:
        self._timers = [entry for entry in self._timers if entry[2].action is not None]
        heapq.heapify(self._timers)
        self._dead_bound = max(1024, 2 * len(self._timers))
