"""Clients: HELLO and WELCOME, who owns what, delivery, and noticing who is gone."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Literal

import zmq

import inferd
from inferd.front.errors import Refusal
from inferd.front.records import Peer, Request, Session
from inferd_client.protocol import MAJOR, MINOR, Code, Error, Hello, Limits, Pong, Reply, Welcome, encode

if TYPE_CHECKING:
    from inferd.config.schema import Daemon
    from inferd.front.outbox import Piece
    from inferd.front.records import Role, Transport
    from inferd.front.sockets import Sockets
    from inferd.loop import Loop
    from inferd.metrics import Metrics

Side = Literal["data", "control"]
Sent = Literal["sent", "full", "gone"]

RECONNECT_GRACE_S = 0.3
"""How long a lost connection may be replaced before its work is cancelled."""
RETRY_S = 0.02
"""Between tries to send to a client whose queue is full: ROUTER does not tell when it has room."""
SWEEP_S = 1.0
SILENT_BEATS = 3
"""Heartbeats after which a silent client without work is asked whether it is there."""
UNREAD_ANSWERS = 50_000
"""Messages a client may leave unread, however short, before it is forgotten."""
LABEL_CHARS = 64


class Sessions:
    """All clients of the daemon. `on_gone` ends a vanished client's work, `on_slow` one request's."""

    def __init__(self, settings: Daemon, sockets: Sockets, loop: Loop, metrics: Metrics, instance: str) -> None:
        self._settings = settings
        self._sockets: dict[tuple[Side, Transport], zmq.Socket[bytes]] = {
            ("data", "ipc"): sockets.data,
            ("control", "ipc"): sockets.control,
        }
        self._remote = sockets.remote
        if sockets.remote is not None:
            self._sockets["data", "tcp"] = sockets.remote.data
            self._sockets["control", "tcp"] = sockets.remote.control
        self._loop = loop
        self._metrics = metrics
        self._instance = instance
        self._numbers = count(1)
        self._by_token: dict[str, Session] = {}
        self._by_peer: dict[Side, dict[Peer, Session]] = {"data": {}, "control": {}}
        self._blocked: set[Session] = set()
        self.max_context: int | None = None
        self.on_gone: Callable[[Session], None] = lambda _session: None
        self.on_slow: Callable[[Request], None] = lambda _request: None
        loop.after(SWEEP_S, self._sweep)

    def __len__(self) -> int:
        return len(self._by_token)

    def all(self) -> list[Session]:
        return list(self._by_token.values())

    @property
    def unsent(self) -> bool:
        """Whether a reachable client still has output coming."""
        return bool(self._blocked)

    def find(self, side: Side, peer: Peer) -> Session | None:
        """Return the session of a connection and note that it lives."""
        session = self._by_peer[side].get(peer)
        if session is not None:
            session.last_heard = self._loop.clock()
        return session

    def hello(self, side: Side, peer: Peer, hello: Hello, key: str, role: Role) -> None:
        """Begin or resume a session on one socket; `key` is that of a peer on tcp."""
        if hello.major != MAJOR:
            text = f"the client speaks protocol {hello.major}, this daemon {MAJOR}"
            self.send_to(side, peer, Error(code=Code.PROTOCOL_MISMATCH, message=text))
            return
        session = self._by_token.get(hello.session or "")
        if session is not None and session.key != key:
            session = None  # somebody else's token
        resumed = session is not None
        try:
            session = session or self._begin(hello.client, key, role)
        except Refusal as refusal:
            self.send_to(side, peer, Error(code=refusal.code, message=refusal.message, retry_after_ms=1000))
            return
        self._attach(session, side, peer)
        self.send_to(side, peer, self._welcome(session, resumed))
        if side == "data":
            self._flush(session)

    def send(self, session: Session, reply: Reply) -> None:
        """Send on the data socket, behind what already waits."""
        session.last_sent = self._loop.clock()
        if session.forgotten or (not session.outbox and self._send_data(session, reply)):
            return
        session.outbox.put(reply)
        self._block(session)

    def send_piece(self, request: Request, piece: Piece) -> None:
        """Send output; a client too slow for its buffer loses the request."""
        session = request.session
        session.last_sent = request.last_sent = self._loop.clock()
        if session.forgotten:
            return
        if not session.outbox:
            seq = request.stream.seq
            if self._send_data(session, request.stream.next(piece)):
                return
            request.stream.seq = seq
        session.outbox.put_piece(request.stream, piece)
        self._block(session)
        if session.outbox.output_bytes > self._settings.out_buffer_bytes:
            session.outbox.drop(request.stream)
            self.on_slow(request)

    def send_control(self, session: Session, reply: Reply) -> None:
        """Answer on the control socket; nothing is kept for who does not read."""
        if session.control is None or self.send_to("control", session.control, reply) != "sent":
            self._metrics.count("control_answers_dropped_total")

    def drop(self, session: Session) -> None:
        """End a session whose key is no longer allowed, with all of its work."""
        self._forget(session)

    def send_to(self, side: Side, peer: Peer, reply: Reply) -> Sent:
        """Send to a connection, without waiting."""
        try:
            socket = self._sockets[side, peer.transport]
            socket.send_multipart([peer.identity, *encode(reply)], zmq.DONTWAIT, copy=True)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lost(side, peer)
            return "gone"
        return "sent"

    def _begin(self, label: str, key: str, role: Role) -> Session:
        if len(self._by_token) >= self._settings.max_clients:
            self._probe_idle(0.0)
        if len(self._by_token) >= self._settings.max_clients:
            raise Refusal(Code.OVERLOADED, f"{len(self._by_token)} clients are connected, the limit")
        session = Session(
            number=next(self._numbers),
            token=secrets.token_urlsafe(24),
            label="".join(c for c in label if c.isprintable())[:LABEL_CHARS],
            role=role,
            last_heard=self._loop.clock(),
            key=key,
        )
        self._by_token[session.token] = session
        return session

    def _welcome(self, session: Session, resumed: bool) -> Welcome:
        return Welcome(
            major=MAJOR,
            minor=MINOR,
            version=inferd.__version__,
            instance=self._instance,
            session=session.token,
            role=session.role,
            limits=Limits(
                max_frame=self._settings.max_frame,
                max_queue=self._settings.max_queue,
                max_client_requests=self._settings.max_client_requests,
                max_context=self.max_context,
            ),
            heartbeat_s=self._settings.heartbeat_s,
            resumed=resumed,
        )

    def _attach(self, session: Session, side: Side, peer: Peer) -> None:
        known = self._by_peer[side]
        before = known.get(peer)
        if before is not None and before is not session:
            self._lost(side, peer)
        old = session.data if side == "data" else session.control
        if old is not None and old != peer:
            known.pop(old, None)
        known[peer] = session
        session.last_heard = self._loop.clock()
        if side == "data":
            session.data, session.lost_at = peer, None
        else:
            session.control = peer

    def _lost(self, side: Side, peer: Peer) -> None:
        """Note that a connection is gone; its work ends unless it is replaced soon."""
        session = self._by_peer[side].pop(peer, None)
        if session is None:
            return
        if side == "control":
            session.control = None
            if session.data is None and not session.requests:
                self._forget(session)
            return
        session.data, session.lost_at = None, self._loop.clock()
        self._blocked.discard(session)
        self._loop.after(RECONNECT_GRACE_S, lambda: self._give_up(session))

    def _give_up(self, session: Session) -> None:
        if session.lost_at is not None and self._loop.clock() - session.lost_at >= 0.9 * RECONNECT_GRACE_S:
            self.on_gone(session)
            if not session.outbox:
                self._forget(session)  # nothing there to come back for

    def _send_data(self, session: Session, reply: Reply) -> bool:
        return session.data is not None and self.send_to("data", session.data, reply) == "sent"

    def _flush(self, session: Session) -> None:
        if session.outbox.flush(lambda reply: self._send_data(session, reply)):
            self._blocked.discard(session)
        else:
            self._block(session)

    def _block(self, session: Session) -> None:
        if len(session.outbox) > UNREAD_ANSWERS:
            self._forget(session)  # it sends requests and reads no answers
        elif session.data is not None:
            if not self._blocked:
                self._loop.after(RETRY_S, self._retry)
            self._blocked.add(session)

    def _retry(self) -> None:
        blocked, self._blocked = self._blocked, set()
        for session in blocked:
            self._flush(session)

    def _sweep(self) -> None:
        """Forget sessions that are gone for good, and those whose key was taken off the allow-list."""
        now = self._loop.clock()
        self._probe_idle(SILENT_BEATS * self._settings.heartbeat_s)
        for session in list(self._by_token.values()):
            lost = session.lost_at is not None and now - session.lost_at > self._settings.session_ttl_s
            silent = not session.requests and now - session.last_heard > self._settings.client_timeout_s
            if lost or (silent and session.lost_at is None) or self._is_revoked(session):
                self._forget(session)
        self._loop.after(SWEEP_S, self._sweep)

    def _is_revoked(self, session: Session) -> bool:
        return bool(session.key) and self._remote is not None and self._remote.allowed.find(session.key) is None

    def _probe_idle(self, silent_s: float) -> None:
        """Say something to clients without work that were silent for so long: who is gone is noticed by it."""
        before = self._loop.clock() - silent_s
        for session in [s for s in self._by_token.values() if not s.requests and s.last_heard <= before]:
            if session.control is not None:
                self.send_to("control", session.control, Pong())
            if session.data is not None:
                self.send_to("data", session.data, Pong())
            if session.control is None and session.data is None and not session.outbox:
                self._forget(session)

    def _forget(self, session: Session) -> None:
        self._by_token.pop(session.token, None)
        self._blocked.discard(session)
        if session.data is not None:
            self._by_peer["data"].pop(session.data, None)
        if session.control is not None:
            self._by_peer["control"].pop(session.control, None)
        session.data = session.control = None
        session.forgotten = True
        session.outbox.clear()
        self.on_gone(session)
