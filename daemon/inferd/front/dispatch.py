"""Messages of clients to their handlers: one bad message is answered and hurts nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from inferd.front.errors import Refusal
from inferd.front.requests import error_of
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
    from inferd.front.records import Session
    from inferd.front.sessions import Sessions, Side
    from inferd.front.sockets import Sockets
    from inferd.log import Logger
    from inferd.metrics import Metrics
    from inferd_client.protocol import Reply

M = TypeVar("M")
MESSAGES_A_TURN = 64
"""Read from one socket before the others are looked at again."""


class Dispatcher:
    """Reads the two ROUTER sockets."""

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
        self._data = data
        self._control = control
        self._metrics = metrics
        self._log = log
        self._max_frame = max_frame

    def read_data(self) -> None:
        self._read("data", self._sockets.data, data_decoder, self._data.handle, self._sessions.send)

    def read_control(self) -> None:
        self._read("control", self._sockets.control, control_decoder, self._control.handle, self._sessions.send_control)

    def _read(
        self,
        side: Side,
        socket: zmq.Socket[bytes],
        decoder: Decoder[M],
        handle: Callable[[Session, Any], None],
        answer: Callable[[Session, Reply], None],
    ) -> None:
        for _ in range(MESSAGES_A_TURN):
            try:
                identity, *frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            session = self._sessions.find(side, identity)
            try:
                message = decode(frames, decoder, max_frame=self._max_frame)
            except FrameError as error:
                self._bad_frame(side, identity, frames, error)
                continue
            if isinstance(message, Hello):
                self._sessions.hello(side, identity, message)
            elif session is None:
                self._unknown(side, identity, getattr(message, "id", None))
            elif isinstance(message, Ping):
                self._sessions.send_to(side, identity, Pong(nonce=message.nonce))
            else:
                self._handle(session, message, handle, answer)

    def _handle(
        self,
        session: Session,
        message: Any,
        handle: Callable[[Session, Any], None],
        answer: Callable[[Session, Reply], None],
    ) -> None:
        request_id = getattr(message, "id", None)
        try:
            handle(session, message)
        except Refusal as refusal:
            self._metrics.count("request_error_total", code=refusal.code)
            answer(session, error_of(refusal, request_id))
        except Exception as error:  # noqa: BLE001 - a fault met by one message must not end the daemon for all
            self._log.error("handler failed", kind=type(message).__name__, exc_info=error)
            text = f"internal error: {type(error).__name__}"
            answer(session, Error(code=Code.INVALID_PARAM, message=text, id=request_id))

    def _bad_frame(self, side: Side, identity: bytes, frames: list[bytes], error: FrameError) -> None:
        self._metrics.count("bad_frames_total")
        text = str(error)
        if error.code is Code.PROTOCOL_MISMATCH:
            text += f"; use a client library of protocol {MAJOR}"
        reply = Error(code=error.code, message=text, id=request_id_of(frames), field=error.field)
        self._sessions.send_to(side, identity, reply)

    def _unknown(self, side: Side, identity: bytes, request_id: str | None) -> None:
        text = "this connection has no session: send hello first, with the session token to resume one"
        self._sessions.send_to(side, identity, Error(code=Code.UNAUTHORIZED, message=text, id=request_id))
