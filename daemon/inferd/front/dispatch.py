"""Messages of clients to their handlers: one bad message is answered and hurts nobody else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq

from inferd.front.errors import Refusal
from inferd.front.records import Peer
from inferd.front.requests import error_of
from inferd.front.roles import check_role
from inferd.front.zap import holder
from inferd_client.protocol import (
    MAJOR,
    Code,
    Error,
    FrameError,
    Hello,
    Ping,
    Pong,
    control_decoder,
    data_decoder,
    decode,
    request_id_of,
)

if TYPE_CHECKING:
    from msgspec.msgpack import Decoder

    from inferd.front.control import ControlCalls
    from inferd.front.data import DataCalls
    from inferd.front.records import Role, Session
    from inferd.front.sessions import Sessions, Side
    from inferd.front.sockets import Sockets
    from inferd.keys import AllowList
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd.metrics import Metrics

REFUSED_QUIET_S = 10.0
"""Between two log lines about clients that were turned away."""
MESSAGES_A_TURN = 64
"""Read from one socket before the others are looked at again."""


class Dispatcher:
    """Reads the ROUTER sockets."""

    def __init__(
        self,
        sockets: Sockets,
        sessions: Sessions,
        data: DataCalls,
        control: ControlCalls,
        metrics: Metrics,
        log: Logger,
        max_frame: int,
    ) -> None:
        self._sockets = sockets
        self._sessions = sessions
        self._handlers: dict[Side, Callable[[Session, Any], None]] = {"data": data.handle, "control": control.handle}
        self._decoders: dict[Side, Decoder[Any]] = {"data": data_decoder, "control": control_decoder}
        self._metrics = metrics
        self._log = log
        self._max_frame = max_frame
        self._quiet_until = 0.0

    def listen(self, loop: Loop) -> None:
        """Read the sockets whenever the loop finds something on them."""
        loop.add(self._sockets.control, lambda: self._read("control", self._sockets.control))
        loop.add(self._sockets.data, lambda: self._read("data", self._sockets.data))
        remote = self._sockets.remote
        if remote is not None:
            remote.zap.on_refused = partial(self._refused, loop)
            loop.add(remote.zap.socket, remote.zap.answer)
            loop.add(remote.control, lambda: self._read_remote("control", remote.control, remote.allowed))
            loop.add(remote.data, lambda: self._read_remote("data", remote.data, remote.allowed))

    def _read(self, side: Side, socket: zmq.Socket[bytes]) -> None:
        """Take messages from an ipc socket: whoever reaches it owns its folder."""
        for _ in range(MESSAGES_A_TURN):
            try:
                identity, *frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._take(side, Peer("ipc", identity), frames, "", "admin")

    def _read_remote(self, side: Side, socket: zmq.Socket[bytes], allowed: AllowList) -> None:
        """Take messages from a tcp socket: the role is that of the key now, so that revoking one works at once."""
        for _ in range(MESSAGES_A_TURN):
            try:
                identity, *parts = socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            peer = Peer("tcp", identity.bytes)
            key, known = holder(identity, allowed)
            if known is None:
                self._revoked(side, peer)
            else:
                self._take(side, peer, [part.bytes for part in parts], key, known.role)

    def _take(self, side: Side, peer: Peer, frames: list[bytes], key: str, role: Role) -> None:
        session = self._sessions.find(side, peer)
        try:
            message = decode(frames, self._decoders[side], max_frame=self._max_frame)
        except FrameError as error:
            self._bad_frame(side, peer, frames, error)
            return
        if isinstance(message, Hello):
            self._sessions.hello(side, peer, message, key, role)
        elif session is None:
            self._unknown(side, peer, getattr(message, "id", None))
        elif isinstance(message, Ping):
            self._sessions.send_to(side, peer, Pong(nonce=message.nonce))
        else:
            session.role = role
            self._handle(side, session, message)

    def _refused(self, loop: Loop, address: str, key: str) -> None:
        """Log who was turned away, now and then: whoever tries often must not fill the log."""
        self._metrics.count("tcp_refused_total")
        if loop.clock() >= self._quiet_until:
            self._quiet_until = loop.clock() + REFUSED_QUIET_S
            self._log.warning(
                "client refused", address=address, key=key, remedy="inferd keys allow NAME KEY --role ROLE"
            )

    def _revoked(self, side: Side, peer: Peer) -> None:
        text = "the key of this client is no longer allowed"
        self._sessions.send_to(side, peer, Error(code=Code.UNAUTHORIZED, message=text))
        session = self._sessions.find(side, peer)
        if session is not None:
            self._log.warning("client dropped", client=session.name, why=text)
            self._sessions.drop(session)

    def _handle(self, side: Side, session: Session, message: Any) -> None:
        request_id = getattr(message, "id", None)
        answer = self._sessions.send if side == "data" else self._sessions.send_control
        try:
            check_role(session.role, message)
            self._handlers[side](session, message)
        except Refusal as refusal:
            self._metrics.count("request_error_total", code=refusal.code)
            answer(session, error_of(refusal, request_id))
        except Exception as error:  # noqa: BLE001 - a fault met by one message must not end the daemon for all
            self._log.error("handler failed", kind=type(message).__name__, exc_info=error)
            text = f"internal error: {type(error).__name__}"
            answer(session, Error(code=Code.INVALID_PARAM, message=text, id=request_id))

    def _bad_frame(self, side: Side, peer: Peer, frames: list[bytes], error: FrameError) -> None:
        self._metrics.count("bad_frames_total")
        text = str(error)
        if error.code is Code.PROTOCOL_MISMATCH:
            text += f"; use a client library of protocol {MAJOR}"
        reply = Error(code=error.code, message=text, id=request_id_of(frames), field=error.field)
        self._sessions.send_to(side, peer, reply)

    def _unknown(self, side: Side, peer: Peer, request_id: str | None) -> None:
        text = "this connection has no session: send hello first, with the session token to resume one"
        self._sessions.send_to(side, peer, Error(code=Code.UNAUTHORIZED, message=text, id=request_id))
