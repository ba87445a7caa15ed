"""The events socket: state snapshots with a number, and the changes of models."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import zmq

from inferd_client.protocol import ModelEvent, encode

if TYPE_CHECKING:
    from inferd.front.model import Model
    from inferd.front.sockets import Sockets
    from inferd.front.status import StatusBuilder
    from inferd.loop import Loop
    from inferd_client.protocol import Event

MAX_SUBSCRIPTIONS_A_TURN = 64


class Events:
    """Publishes while someone listens; whoever subscribes gets the present state at once."""

    def __init__(self, sockets: Sockets, status: StatusBuilder, loop: Loop, hz: float) -> None:
        self._sockets = sockets
        self._revision = 0
        self._status = status
        self._loop = loop
        self._period_s = 1 / hz
        self._listened = False
        self._seq = 0
        for socket in sockets.publishers:
            loop.add(socket, partial(self._subscriptions, socket))
        loop.after(self._period_s, self._tick)

    def model_changed(self, model: Model) -> None:
        if self._listened:
            seq = self._next()
            self._publish(ModelEvent(seq=seq, name=model.name, state=model.state, detail=model.detail))

    def snapshot(self) -> None:
        self._publish(self._status.build(seq=self._next()))

    def _subscriptions(self, socket: zmq.Socket[bytes]) -> None:
        """Take subscriptions; the last leaving subscriber of a topic is reported, so is each new one."""
        joined = False
        for _ in range(MAX_SUBSCRIPTIONS_A_TURN):
            try:
                message = socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                break
            if message[:1] == b"\1":
                joined = True
        if joined:
            self._listened = True
            self.snapshot()

    def _tick(self) -> None:
        self._shake_off()
        if self._listened:
            self.snapshot()
        self._loop.after(self._period_s, self._tick)

    def _shake_off(self) -> None:
        """When a client lost rights, bind the tcp socket anew: all subscribers must prove themselves again."""
        remote = self._sockets.remote
        if remote is None:
            return
        if remote.events is not None and remote.allowed.revision != self._revision:
            self._loop.remove(remote.events)
            remote.events.close(0)
            remote.events = None
        if remote.events is None:
            with suppress(zmq.ZMQError):  # the old one is still being closed: at the next tick
                remote.events = remote.bind_events()
                self._revision = remote.allowed.revision
                self._loop.add(remote.events, partial(self._subscriptions, remote.events))

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _publish(self, event: Event) -> None:
        for socket in self._sockets.publishers:
            socket.send_multipart(encode(event), zmq.DONTWAIT)  # XPUB drops for a slow reader, it never blocks
