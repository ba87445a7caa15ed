"""Streams of the blocking client: one generation piece by piece, and the events of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from . import protocol as p
from .call import Item
from .calls import Planned
from .driver import Driver
from .errors import InferdError
from .mailbox import BlockingMailbox, WaitedInVain
from .results import Completion, Piece
from .stream_base import EventStreamBase, StreamBase

if TYPE_CHECKING:
    from .base import ClientBase


class Stream(StreamBase):
    """Iterator over the pieces of one generation, used by one thread at a time.

    Leaving early cancels at the daemon: `close`, the end of a `with`, an exception while waiting (an
    interrupt too), or dropping the last reference. Iterating raises what `Client.generate` documents.
    """

    def __init__(self, client: ClientBase, driver: Driver, planned: Planned) -> None:
        self._mailbox: BlockingMailbox[Item] = BlockingMailbox()
        super().__init__(client, driver, planned, self._mailbox.put)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        while not self._assembly.done:
            try:
                piece = self._add(self._mailbox.get(self._patience.remaining()))
            except (WaitedInVain, InferdError) as error:
                raise self._broke(error) from None
            except BaseException:  # an interrupt, a cancelled task, a failing on_progress
                self._abandon()
                raise
            if piece is not None:
                return piece
        raise StopIteration

    def result(self) -> Completion:
        """Read the stream to its end and return the whole. Raises the error that ended it, again if need be."""
        for _ in self:
            pass
        return self._outcome()

    def close(self) -> None:
        """Stop the generation at the daemon unless it has ended; nothing more is delivered. Idempotent."""
        self._abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventStream(EventStreamBase):
    """Endless iterator over what the daemon publishes: StatusReply snapshots and ModelEvent changes."""

    def __init__(self, client: ClientBase, driver: Driver, timeout: float | None) -> None:
        self._mailbox: BlockingMailbox[p.Event | InferdError] = BlockingMailbox()
        super().__init__(client, driver, timeout, self._mailbox.put, self._mailbox.__len__)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> p.Event:
        if not self._open:
            raise StopIteration
        try:
            return self._accept(self._mailbox.get(self._timeout).item)
        except WaitedInVain:
            raise self._waited_in_vain() from None

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._unsubscribe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
