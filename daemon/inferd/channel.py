"""One typed two-way link between the front and a child: a ZeroMQ PAIR over an ipc path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import zmq

from inferd.link import Msg, pack

if TYPE_CHECKING:
    from msgspec.msgpack import Decoder

T = TypeVar("T")

CHILD_HWM = 1000
"""Messages a child may be ahead of a paused front before its send waits."""
FRONT_HWM = 4000
"""Messages of a child that a paused front takes in: ten seconds of steps of 2.5 ms. It bounds the memory that a child
costs which speaks faster than the front listens."""
LINGER_MS = 10_000
"""How long the last words of a child may take to be read; the front may be paused."""
RECONNECT_MS = 5
"""Between tries to reach a child that has not bound yet."""


class ChannelError(RuntimeError):
    """The other end sent what is not one of its messages."""


class Channel(Generic[T]):
    """Send and receive the messages of `inferd.link`; `decoder` names what this end receives.

    The child binds: its sends wait when the front is paused, so that nothing is ever lost. The front
    connects, before or after: its sends never block and are bounded by its own request queue. What a child
    has sent it takes in at once, up to a bound that only a long pause reaches: ZeroMQ drops what still lies in a
    connection that ends while its reader has as much as it may have.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        bind: bool,
        decoder: Decoder[T],
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.path = str(path)
        self._bound = bind
        self._decoder = decoder
        self._own_context = context is None
        self._context = context or zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self.socket.set(zmq.LINGER, LINGER_MS if bind else 0)
        self.socket.set(zmq.SNDHWM, CHILD_HWM if bind else 0)
        self.socket.set(zmq.RCVHWM, 0 if bind else FRONT_HWM)
        self.socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        if bind:
            with private_files():
                self.socket.bind(f"ipc://{self.path}")
        else:
            self.socket.connect(f"ipc://{self.path}")

    def send(self, message: Msg) -> None:
        """Queue one message; it leaves in order."""
        self.socket.send(pack(message), 0 if self._bound else zmq.DONTWAIT)

    def recv_all(self, limit: int = 1024) -> list[T]:
        """Return what has arrived, oldest first, at most `limit`. Raises ChannelError."""
        messages: list[T] = []
        while len(messages) < limit:
            try:
                body = self.socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                break
            try:
                messages.append(self._decoder.decode(body))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ChannelError(f"{self.path}: {error}") from None
        return messages

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until something can be received; False when the time is over."""
        return bool(self.socket.poll(None if timeout_s is None else int(timeout_s * 1000)))

    @property
    def file(self) -> int:
        """A file that can be read from when something has come since `recv_all` last found no more, or may have."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket; the front removes what a killed child left of it."""
        self.socket.close()
        if self._own_context:
            self._context.term()
        if not self._bound:
            Path(self.path).unlink(missing_ok=True)


@contextmanager
def private_files() -> Iterator[None]:
    """Make sockets bound inside readable and writable by us alone from the first moment."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
