"""A queue in which clients take turns, so that a thousand jobs of one delay another's by one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items in the order of their coming for each client; the clients one after another."""

    def __init__(self) -> None:
        self._first: deque[T] = deque()
        self._queues: OrderedDict[int, deque[T]] = OrderedDict()
        """By client; the next one's turn comes first."""

    def __bool__(self) -> bool:
        return bool(self._first or self._queues)

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        for queue in self._queues.values():
            yield from queue

    def push(self, client: int, item: T) -> None:
        self._queues.setdefault(client, deque()).append(item)

    def put_first(self, items: list[T]) -> None:
        """Let these go before all others, in their order."""
        self._first.extendleft(reversed(items))

    def pop(self, may: Callable[[int], bool] = lambda client: True) -> T | None:
        """Take out the next item of a client that `may` have its turn; None when there is none."""
        if self._first:
            return self._first.popleft()
        client = next(filter(may, self._queues), None)
        if client is None:
            return None
        queue = self._queues.pop(client)
        item = queue.popleft()
        if queue:
            self._queues[client] = queue
        return item

    def clear(self) -> None:
        self._first.clear()
        self._queues.clear()
