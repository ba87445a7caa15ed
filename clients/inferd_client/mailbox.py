"""Where the answers of one call arrive from the I/O thread, in a blocking and an asyncio form."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections import deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

RESUMED_S = 5.0
"""How long to wait once more after a pause; a daemon that lives says something every second."""
PAUSE_S = 1.0
"""A wait that ends later than it should by more than this was a pause of the process or the machine."""


class WaitedInVain(Exception):
    """Nothing came in time. Not a TimeoutError, which some errors of the daemon are."""


def overslept(began: float, timeout: float | None) -> float:
    """Return by how much a wait since `began` was late, 0 unless that was a pause: news may still be on its way."""
    late = 0.0 if timeout is None else time.monotonic() - began - timeout
    return late if late > PAUSE_S else 0.0


def _again(timeout: float | None) -> float | None:
    return None if timeout is None else min(timeout, RESUMED_S)


class Arrival(NamedTuple, Generic[T]):
    """An item and the monotonic time at which it came in."""

    at: float
    item: T


class BlockingMailbox(Generic[T]):
    """Read by a thread that waits."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Arrival[T]] = queue.SimpleQueue()

    def __len__(self) -> int:
        return self._queue.qsize()

    def put(self, item: T) -> None:
        self._queue.put(Arrival(time.monotonic(), item))

    def get(self, timeout: float | None) -> Arrival[T]:
        """Return the next item. Raises WaitedInVain after `timeout` seconds; None waits for ever."""
        while True:
            began = time.monotonic()
            try:
                return self._queue.get(timeout=timeout if timeout is None else max(timeout, 0.0))
            except queue.Empty:
                if not overslept(began, timeout):
                    raise WaitedInVain from None
                timeout = _again(timeout)


class AsyncMailbox(Generic[T]):
    """Read by a task of the running event loop; `put` may come from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Arrival[T]] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        self._items.append(Arrival(time.monotonic(), item))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def get(self, timeout: float | None) -> Arrival[T]:
        """Return the next item. Raises WaitedInVain after `timeout` seconds; None waits for ever."""
        while not self._items:
            began = time.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    await self._wait()
            except TimeoutError:
                if not self._items and not overslept(began, timeout):
                    raise WaitedInVain from None
                timeout = _again(timeout)
        return self._items.popleft()

    async def _wait(self) -> None:
        while not self._items:
            self._arrived.clear()
            if not self._items:
                await self._arrived.wait()
