"""Streams of the asyncio client: one generation piece by piece, and the events of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from . import protocol as p
from .call import Item
from .calls import Planned
from .driver import Driver
from .errors import InferdError
from .mailbox import AsyncMailbox, WaitedInVain
from .results import Completion, Piece
from .stream_base import EventStreamBase, StreamBase

if TYPE_CHECKING:
    from .base import ClientBase


class AsyncStream(StreamBase):
    """Async iterator over the pieces of one generation, used by one task at a time.

    Leaving early cancels at the daemon: `close`, the end of an `async with`, the cancellation of the task that
    waits, or dropping the last reference. Iterating raises what `Client.generate` documents.
    """

    def __init__(self, client: ClientBase, driver: Driver, planned: Planned) -> None:
        self._mailbox: AsyncMailbox[Item] = AsyncMailbox()
        super().__init__(client, driver, planned, self._mailbox.put)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._assembly.done:
            try:
                piece = self._add(await self._mailbox.get(self._patience.remaining()))
            except (WaitedInVain, InferdError) as error:
                raise self._broke(error) from None
            except BaseException:  # an interrupt, a cancelled task, a failing on_progress
                self._abandon()
                raise
            if piece is not None:
                return piece
        raise StopAsyncIteration

    async def result(self) -> Completion:
        """Read the stream to its end and return the whole. Raises the error that ended it, again if need be."""
        async for _ in self:
            pass
        return self._outcome()

    async def close(self) -> None:
        """Stop the generation at the daemon unless it has ended; nothing more is delivered. Idempotent."""
        self._abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncEventStream(EventStreamBase):
    """Endless async iterator over what the daemon publishes: StatusReply snapshots and ModelEvent changes."""

    def __init__(self, client: ClientBase, driver: Driver, timeout: float | None) -> None:
        self._mailbox: AsyncMailbox[p.Event | InferdError] = AsyncMailbox()
        super().__init__(client, driver, timeout, self._mailbox.put, self._mailbox.__len__)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> p.Event:
        if not self._open:
            raise StopAsyncIteration
        try:
            return self._accept((await self._mailbox.get(self._timeout)).item)
        except WaitedInVain:
            raise self._waited_in_vain() from None

    async def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._unsubscribe()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
