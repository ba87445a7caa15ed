"""Messages between the text process and a worker, over a pair of sockets."""

from __future__ import annotations

import socket


class Pipe:
    """One end between the process and a worker; each waits for the other's message, so none is read ahead."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = end.makefile("rb")

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def has_news(self) -> bool:
        """True when `receive` need not wait: a message begins, or the other end is closed."""
        try:
            self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def send(self, message: bytes) -> None:
        """Send all of a message. Raises OSError when the other end is closed."""
        self._end.sendall(len(message).to_bytes(8, "little") + message)

    def receive(self) -> bytes:
        """Wait for a message. Raises EOFError when the other end is closed."""
        return self._exactly(int.from_bytes(self._exactly(8), "little"))

    def close(self) -> None:
        self._reader.close()
        self._end.close()

    def _exactly(self, size: int) -> bytes:
        try:
            found = self._reader.read(size)
        except OSError:
            found = b""
        if len(found) < size:
            raise EOFError
        return found
