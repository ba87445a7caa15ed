"""What systemd is told (sd_notify): datagrams to NOTIFY_SOCKET, nothing where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

EXTEND_S = 15.0
"""More time asked for while loading, and for ending the children after a drain."""
MAX_DRAIN_S = 86400.0
STATUS_CHARS = 1000


class Notifier:
    """One method a message of the protocol that we use."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        usec = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(usec) / 2e6 if usec.isdigit() and mine else None
        """How often `watchdog` is due; None = not asked for."""
        self._ready = False
        self._status = ""

    @property
    def wanted(self) -> bool:
        return bool(self._address)

    def ready(self, ready: bool) -> None:
        """Say once that we serve."""
        if ready and not self._ready:
            self._ready = self._send("READY=1")

    def status(self, text: str) -> None:
        """Say in one line how it goes, when that has changed."""
        line = "".join(c if c.isprintable() else " " for c in text)[:STATUS_CHARS]
        if line != self._status and self._send(f"STATUS={line}"):
            self._status = line

    def still_loading(self) -> None:
        """Ask for more time to start, while loading goes on."""
        if not self._ready:
            self._send(f"EXTEND_TIMEOUT_USEC={int(EXTEND_S * 1e6)}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self, drain_s: float) -> None:
        """Say that we end, and how long running requests may still take."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int((min(drain_s, MAX_DRAIN_S) + EXTEND_S) * 1e6)}")

    def _send(self, text: str) -> bool:
        """Return whether it was taken; a full queue is no reason to wait."""
        if not self._address:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            out.sendto(text.encode(errors="replace"), address)
            return True
        return False
