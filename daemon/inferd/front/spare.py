"""An engine process that waits, with everything imported, for the model it will serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from inferd.channel import ChannelError
from inferd.link import Warm

if TYPE_CHECKING:
    from inferd.channel import Channel
    from inferd.link import EngineOut
    from inferd.loop import Loop
    from inferd.process import Child


class EngineProcess(NamedTuple):
    """A child that serves one model once it is told which."""

    child: Child
    channel: Channel[EngineOut]

    def close(self) -> None:
        self.child.reap()
        self.channel.close()


class Spare:
    """At most one waiting process. One that ends by itself is not replaced before a load has succeeded."""

    def __init__(self, start: Callable[[], EngineProcess], loop: Loop) -> None:
        self._start = start
        self._loop = loop
        self._process: EngineProcess | None = None
        self._broken = False
        self.bytes: int | None = None
        """Memory of its own, once it is warm; None before, and without one."""

    def prepare(self) -> None:
        """Start one unless there is one. Where the system refuses, loads take longer and nothing else is lost."""
        if self._process is not None or self._broken:
            return
        try:
            self._process = process = self._start()
        except OSError:
            self._broken = True
            return
        self._loop.add(process.channel.socket, lambda: self._read(process))
        self._loop.add(process.child.pidfd, self._ended)

    def take(self) -> EngineProcess | None:
        """Hand the process over, warm or on its way."""
        process = self._process
        if process is None or process.child.exit_status is not None:
            return None
        self._let_go()
        return process

    def works_again(self) -> None:
        """A load has succeeded: processes can be started."""
        self._broken = False

    def close(self) -> None:
        if self._process is not None:
            process = self._process
            self._let_go()
            process.close()

    def _let_go(self) -> None:
        assert self._process is not None
        self._loop.remove(self._process.channel.socket)
        self._loop.remove(self._process.child.pidfd)
        self._process = self.bytes = None

    def _read(self, process: EngineProcess) -> None:
        try:
            messages = process.channel.recv_all()
        except ChannelError:
            self._ended()
            return
        for message in messages:
            if isinstance(message, Warm):
                self.bytes = message.bytes

    def _ended(self) -> None:
        self._broken = True
        self.close()
