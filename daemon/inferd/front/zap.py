"""Who may connect over tcp: the ZAP handler (https://rfc.zeromq.org/spec/27/), answered by the front's own loop.

libzmq asks it at each CURVE handshake, before a byte of the peer is read. The key it accepts comes with every
message as the property User-Id, which no peer can forge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

if TYPE_CHECKING:
    from inferd.keys import AllowList, Known

ADDRESS = "inproc://zeromq.zap.01"
VERSION = b"1.0"
USER_DOMAIN, ADMIN_DOMAIN = b"user", b"admin"
"""ZAP domains of sockets for every allowed client, and of those for admins only."""
HANDSHAKES_A_TURN = 16


class Zap:
    """Answers libzmq's questions from the allow-list."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: AllowList) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ADDRESS)
        self._allowed = allowed
        self.on_refused: Callable[[str, str], None] = lambda _address, _key: None
        """Told the address and the key (Z85; empty without CURVE) of whom was turned away."""

    def answer(self) -> None:
        """Answer what waits; nothing in it can raise."""
        for _ in range(HANDSHAKES_A_TURN):
            try:
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self.socket.send_multipart(self.verdict(frames))

    def verdict(self, frames: list[bytes]) -> list[bytes]:
        """Return the reply to one request: 200 with the key as user id, or 400."""
        request_id = frames[1] if len(frames) > 1 else b""
        address = frames[3].decode(errors="replace") if len(frames) > 3 else ""
        if len(frames) != 7 or frames[0] != VERSION or frames[5] != b"CURVE" or len(frames[6]) != 32:
            self.on_refused(address, "")
            return [VERSION, request_id, b"400", b"CURVE is required", b"", b""]
        key = z85.encode(frames[6])
        known = self._allowed.find(key.decode())
        if known is None or (frames[2] == ADMIN_DOMAIN and known.role != "admin"):
            self.on_refused(address, key.decode())
            return [VERSION, request_id, b"400", b"not allowed", b"", b""]
        return [VERSION, request_id, b"200", b"OK", key, b""]


def holder(frame: zmq.Frame, allowed: AllowList) -> tuple[str, Known | None]:
    """Return the key that a received frame came under, and who holds it now."""
    key = str(frame.get("User-Id"))
    return key, allowed.find(key)
