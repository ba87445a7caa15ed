"""The I/O thread under both faces of the client: it alone touches the sockets and the core.

A plain poller in a thread of its own serves the asyncio face too. It is several times faster than
zmq.asyncio, and heartbeats go on while the application blocks its event loop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from . import protocol as p
from .call import Call, Channel
from .core import Core
from .endpoints import Endpoints
from .errors import ClientClosed, ConnectionFailed, InferdError
from .mailbox import overslept
from .sockets import LINGER_MS, Curve, Wire, absent_reason, subscriber

MAX_BURST = 256
"""Messages read from one socket before the others get a turn."""

EventSink = Callable[[p.Event | InferdError], None]


class Driver:
    """Thread, sockets and core of one client. `post`, `submit` and `close` may be called from any thread."""

    def __init__(self, endpoints: Endpoints, name: str, *, curve: Curve | None = None, wait: bool = False) -> None:
        self.endpoints = endpoints
        self._curve = curve
        self._wait = wait
        self._core = Core(name, remedy(endpoints))
        self._pid = os.getpid()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wires: dict[Channel, Wire] = {}
        self._events: zmq.Socket[Any] | None = None
        self._event_sinks: list[EventSink] = []
        self._lock = threading.RLock()  # a stream may be collected, and abandon its call, inside `post`
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Make the sockets and the thread. Idempotent."""
        with self._lock:
            if self._thread is not None:
                return
            self._bell, self._wake = socket.socketpair()
            self._bell.setblocking(False)
            self._wake.setblocking(False)
            self._context: zmq.Context[Any] = zmq.Context()
            self._poller = zmq.Poller()
            self._poller.register(self._bell, zmq.POLLIN)
            self._thread = threading.Thread(target=self._run, name="inferd-client", daemon=True)
            self._thread.start()

    # from any thread

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` on the I/O thread soon. Raises ClientClosed once the driver is closed."""
        with self._lock:
            if self._closing:
                raise ClientClosed("the client is closed")
            self._inbox.append(work)
        self._ring()

    def submit(self, call: Call) -> None:
        self.post(lambda: self._submit(call))

    def abandon(self, call: Call) -> None:
        """End a call that nobody waits for any longer, and cancel it at the daemon."""
        if not call.ended and os.getpid() == self._pid:
            with contextlib.suppress(ClientClosed):
                self.post(lambda: self._core.abandon(call, time.monotonic()))

    def subscribe(self, sink: EventSink) -> None:
        self.post(lambda: self._subscribe(sink))

    def unsubscribe(self, sink: EventSink) -> None:
        if os.getpid() == self._pid:
            with contextlib.suppress(ClientClosed):
                self.post(lambda: self._unsubscribe(sink))

    @property
    def welcome(self) -> p.Welcome | None:
        """The daemon's latest welcome: version, instance, limits, role."""
        return self._core.welcome

    def close(self) -> None:
        """Fail what is in flight, cancel it at the daemon and end the thread. Idempotent; a no-op after a fork."""
        if os.getpid() != self._pid:
            return
        self._refuse_more()
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._ring()
            if threading.current_thread() is not thread:
                thread.join()

    def _refuse_more(self) -> None:
        with self._lock:
            self._closing = True

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake.send(b"\0")

    # the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            self._shut_down()

    def _turn(self) -> None:
        """Wait for something to happen, handle it, do what came due."""
        due = self._core.tick(time.monotonic())
        self._perform()
        timeout = max(0.0, due - time.monotonic())
        wait_s = min(timeout, 60.0)
        began = time.monotonic()
        ready = dict(self._poller.poll(int(wait_s * 1000) + 1))
        if late := overslept(began, wait_s):
            self._core.overslept(late)
        if self._bell.fileno() in ready:
            self._answer_bell()
        for channel, wire in list(self._wires.items()):
            if wire.socket in ready:
                self._receive(channel, wire)
            if wire.monitor in ready:
                self._follow_transport(channel, wire)
        if self._events is not None and self._events in ready:
            self._receive_events(self._events)
        self._perform()

    def _answer_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        while self._inbox:
            self._inbox.popleft()()

    def _receive(self, channel: Channel, wire: Wire) -> None:
        for _ in range(MAX_BURST):
            frames = wire.receive()
            if frames is None:
                return
            self._core.received(channel, frames, time.monotonic())

    def _follow_transport(self, channel: Channel, wire: Wire) -> None:
        for up in wire.transport_events():
            if up:
                self._core.connected(channel, time.monotonic())
                self._perform()
            else:
                self._replace(channel, wire)
                return

    def _replace(self, channel: Channel, wire: Wire) -> None:
        """Take what a broken connection has still brought, then make a new one."""
        while (frames := wire.receive()) is not None:
            self._core.received(channel, frames, time.monotonic())
        self._perform()
        self._core.disconnected(channel, time.monotonic())
        self._open(channel)

    def _perform(self) -> None:
        while self._core.actions:
            action = self._core.actions.popleft()
            if action.kind == "send" and action.frames is not None:
                self._wires[action.channel].outbox.append(action.frames)
            else:
                self._open(action.channel)
        for wire in self._wires.values():
            self._poller.register(wire.socket, zmq.POLLIN if wire.flush() else zmq.POLLIN | zmq.POLLOUT)

    def _open(self, channel: Channel) -> None:
        if (old := self._wires.pop(channel, None)) is not None:
            self._drop(old)
        endpoint = self.endpoints.data if channel is Channel.DATA else self.endpoints.control
        wire = self._wires[channel] = Wire(self._context, endpoint, self._curve)
        self._poller.register(wire.socket, zmq.POLLIN)
        self._poller.register(wire.monitor, zmq.POLLIN)

    def _drop(self, wire: Wire, linger_ms: int = 0) -> None:
        self._poller.unregister(wire.socket)
        self._poller.unregister(wire.monitor)
        wire.close(linger_ms)

    def _submit(self, call: Call) -> None:
        if (absent := self._absent()) is not None:
            call.ended = True
            call.sink(absent)
            return
        self._core.submit(call, time.monotonic())

    def _absent(self) -> ConnectionFailed | None:
        """Notice at once that no daemon runs, unless it is to be waited for or was there before."""
        if self._wait or self._core.is_welcomed:
            return None
        reason = absent_reason(self.endpoints.control)
        return None if reason is None else ConnectionFailed(f"{reason}; {remedy(self.endpoints)}")

    # events

    def _subscribe(self, sink: EventSink) -> None:
        if (absent := self._absent()) is not None:
            sink(absent)
            return
        self._event_sinks.append(sink)
        if self._events is None:
            self._events = subscriber(self._context, self.endpoints.events, p.HEADER, self._curve)
            self._poller.register(self._events, zmq.POLLIN)

    def _unsubscribe(self, sink: EventSink) -> None:
        if sink in self._event_sinks:
            self._event_sinks.remove(sink)
        if not self._event_sinks and self._events is not None:
            self._poller.unregister(self._events)
            self._events.close(0)
            self._events = None

    def _receive_events(self, sock: zmq.Socket[Any]) -> None:
        for _ in range(MAX_BURST):
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            with contextlib.suppress(p.FrameError):  # an event of a newer minor
                event = p.decode(frames, p.event_decoder, max_frame=2**31)
                for sink in self._event_sinks:
                    sink(event)

    # the end

    def _shut_down(self) -> None:
        self._refuse_more()
        self._answer_bell()
        self._core.close(time.monotonic())
        with contextlib.suppress(zmq.ZMQError):
            self._perform()
        for sink in self._event_sinks:
            sink(ClientClosed("the client was closed"))
        for wire in self._wires.values():
            self._drop(wire, LINGER_MS)
        if self._events is not None:
            self._events.close(0)
        self._context.term()
        self._bell.close()
        self._wake.close()


def remedy(endpoints: Endpoints) -> str:
    """Say what to do when no daemon answers."""
    runtime = endpoints.runtime
    if runtime is None:
        return f"check that an inferd daemon serves {endpoints.control} and allows this key (`inferd keys list` there)"
    return f"start the daemon with `inferd serve`, or name its runtime directory (tried {runtime})"
