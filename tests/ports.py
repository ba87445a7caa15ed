"""Free ports for daemons of tests: outside the range from which the system gives ports to who asks for any."""

from __future__ import annotations

import contextlib
import random
import socket

FROM, TO = 20_000, 32_000


def free_port(count: int = 1) -> int:
    """Return the first of `count` free ports in a row on the loopback."""
    for port in random.SystemRandom().sample(range(FROM, TO), 100):
        with contextlib.ExitStack() as held:
            try:
                for i in range(count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + i))
            except OSError:
                continue
            return port
    raise AssertionError(f"no {count} free ports in a row")
