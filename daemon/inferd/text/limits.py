"""Bounds on what a chat template may use: processor time and memory.

They end one request with an error. The front's time-out, which ends this process, stands behind them.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

MEMORY_HEADROOM = 4 << 30
"""Address space beyond what the process has at its start; vocabularies take some of it."""


class TimeLimit(BaseException):
    """Raised inside the block; not an Exception, so that nothing in between swallows it."""


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise TimeLimit in the block after `limit` seconds of processor time. Main thread only."""

    def expire(signum: int, frame: FrameType | None) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, limit, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(headroom: int = MEMORY_HEADROOM) -> None:
    """Let allocations past `headroom` more bytes of address space fail."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = pages * resource.getpagesize() + headroom
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
