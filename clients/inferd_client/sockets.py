"""The client's ZeroMQ sockets, made and watched."""

from __future__ import annotations

import errno
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

FIRST_RECONNECT_MS = 50
LAST_RECONNECT_MS = 3200
LINGER_MS = 500

WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Z85 keys for a daemon on tcp: its public key and this client's pair, which it must have listed."""

    server_key: bytes
    public_key: bytes
    secret_key: bytes

    def apply(self, sock: zmq.Socket[Any]) -> None:
        sock.curve_serverkey = self.server_key
        sock.curve_publickey = self.public_key
        sock.curve_secretkey = self.secret_key


class Wire:
    """One DEALER with the monitor of its connection and an outbox for when it cannot take more.

    A wire is good for one connection. libzmq would reconnect it and then send what it still had queued, which must
    not reach the daemon before hello; with IMMEDIATE set it would instead drop answers that nobody has read yet.
    """

    def __init__(self, context: zmq.Context[Any], endpoint: str, curve: Curve | None) -> None:
        self.socket = context.socket(zmq.DEALER)
        _set_common(self.socket, curve)
        self.outbox: deque[list[bytes]] = deque()
        self.monitor = self.socket.get_monitor_socket(WATCHED)
        self.socket.connect(endpoint)

    def flush(self) -> bool:
        """Send what the socket takes; return whether all of it went."""
        while self.outbox:
            try:
                self.socket.send_multipart(self.outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                return False
            self.outbox.popleft()
        return True

    def receive(self) -> list[bytes] | None:
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def transport_events(self) -> list[bool]:
        """Return what the connection went through, in order: True = up, False = down."""
        events: list[bool] = []
        while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            event = recv_monitor_message(self.monitor)["event"]
            events.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return events

    def close(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


def subscriber(context: zmq.Context[Any], endpoint: str, topic: bytes, curve: Curve | None) -> zmq.Socket[Any]:
    """Return a SUB socket that keeps few messages: of snapshots only the latest count."""
    sock = context.socket(zmq.SUB)
    _set_common(sock, curve)
    sock.rcvhwm = 64
    sock.subscribe(topic)
    sock.connect(endpoint)
    return sock


def _set_common(sock: zmq.Socket[Any], curve: Curve | None) -> None:
    sock.linger = LINGER_MS
    sock.reconnect_ivl = FIRST_RECONNECT_MS
    sock.reconnect_ivl_max = LAST_RECONNECT_MS
    if curve is not None:
        curve.apply(sock)


def absent_reason(endpoint: str) -> str | None:
    """Say why nobody can answer at an ipc endpoint; None = somebody listens, or it is not ipc."""
    if not endpoint.startswith("ipc://"):
        return None
    path = endpoint.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return None
        except OSError as error:
            return {
                errno.ENOENT: f"there is no socket {path}",
                errno.ECONNREFUSED: f"nobody listens at {path}",
                errno.EACCES: f"{path} belongs to another user",
            }.get(error.errno or 0, f"{path}: {error.strerror}")
    return None
