"""What single snapshots do not say: rates of counters, and how gauges went. Pure; time is the daemon's uptime."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from inferd_client.protocol import StatusReply

STEP_S = 0.45
"""Snapshots closer than this to the last one are not kept."""
KEPT = 240
RATE_S = 5.0
"""Span of the rates shown as numbers."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One kept snapshot."""

    at: float
    status: StatusReply


class History:
    """The last minutes of one instance of the daemon."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._instance: str | None = None

    def add(self, status: StatusReply) -> None:
        """Keep a snapshot; another instance of the daemon starts a new history."""
        last = self._samples[-1].at if self._samples else None
        if status.instance != self._instance or (last is not None and status.uptime_s < last):
            self._samples.clear()
            last = None
        self._instance = status.instance
        if last is None or status.uptime_s - last >= STEP_S:
            self._samples.append(Sample(status.uptime_s, status))

    def copy(self) -> History:
        """Return what is kept now, for a paused screen."""
        other = History()
        other._samples.extend(self._samples)
        other._instance = self._instance
        return other

    def rate(self, counter: str, span_s: float = RATE_S) -> float | None:
        """Return how fast a counter (or a family of labelled ones) grew over the last `span_s`."""
        if len(self._samples) < 2 or total(self._samples[-1].status, counter) is None:
            return None
        newest = self._samples[-1]
        oldest = next(s for s in self._samples if newest.at - s.at <= span_s or s is self._samples[-2])
        return _rate(oldest, newest, counter)

    def rates(self, counter: str) -> list[float | None]:
        """Return the rate between each two neighbouring samples."""
        return [_rate(a, b, counter) for a, b in self._pairs()]

    def gauge(self, read: Callable[[StatusReply], float | None]) -> list[float | None]:
        """Return a value of every kept snapshot."""
        return [read(sample.status) for sample in self._samples]

    def grown(self, counter: str) -> float:
        """Return by how much a counter grew over all that is kept."""
        if not self._samples:
            return 0.0
        first, last = (total(self._samples[i].status, counter) or 0.0 for i in (0, -1))
        return last - first

    def _pairs(self) -> Iterator[tuple[Sample, Sample]]:
        return pairwise(self._samples)


def total(status: StatusReply, counter: str) -> float | None:
    """Return a counter, summed over its labels; None while the daemon has none by that name."""
    name = f"inferd_{counter}"
    found = [value for key, value in status.counters.items() if key == name or key.startswith(name + "{")]
    return sum(found) if found else None


def _rate(a: Sample, b: Sample, counter: str) -> float | None:
    later = total(b.status, counter)
    if later is None or b.at <= a.at:
        return None
    return max(0.0, later - (total(a.status, counter) or 0.0)) / (b.at - a.at)
