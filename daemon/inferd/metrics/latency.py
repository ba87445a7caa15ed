"""Latencies by their definitions, on one monotonic clock.

queue = arrival to first scheduled; prefill = first scheduled to first token; TTFT = arrival to first
token; TPOT = (e2e - TTFT) / (n - 1), none for one token; ITL = gaps between tokens, where k tokens
that arrive together share the gap before them; e2e = arrival to last token. Of engine steps: decode =
time charged to the decode rows of a step without drafts, verify = of a step that verified drafts.
A preempted request keeps its first times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from inferd_client.protocol import Latency, Timings

WINDOW_S = 300.0
MAX_SAMPLES = 4096


class LatencyWindow:
    """The samples of the last minutes, at most so many."""

    def __init__(self, window_s: float = WINDOW_S, max_samples: int = MAX_SAMPLES) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=max_samples)

    def record(self, value: float, now: float) -> None:
        self._samples.append((now, value))

    def summary(self, now: float) -> Latency:
        """Percentiles by nearest rank of what is inside the window."""
        while self._samples and self._samples[0][0] < now - self._window_s:
            self._samples.popleft()
        values = sorted(value for _, value in self._samples)
        if not values:
            return Latency()
        p50, p95, p99 = (values[max(0, math.ceil(q * len(values)) - 1)] for q in (0.5, 0.95, 0.99))
        return Latency(count=len(values), p50=p50, p95=p95, p99=p99)


@dataclass(slots=True)
class TokenClock:
    """When the tokens of one choice came."""

    first: float | None = None
    last: float | None = None
    count: int = 0

    def record(self, now: float, count: int) -> Iterator[float]:
        """Note `count` tokens arriving together; yield the gap before each, none before the very first."""
        if not count:
            return
        gaps = count
        if self.first is None or self.last is None:
            self.first = self.last = now
            gaps = count - 1
        gap = (now - self.last) / count
        self.last = now
        self.count += count
        for _ in range(gaps):
            yield gap

    @property
    def tpot(self) -> float | None:
        if self.first is None or self.last is None or self.count < 2:
            return None
        return (self.last - self.first) / (self.count - 1)


def timings(arrival: float, first_scheduled: float | None, clocks: list[TokenClock], now: float) -> Timings:
    """Return the timings of a request; `now` is its end where no token came. Choices share one TPOT, their mean."""
    firsts = [clock.first for clock in clocks if clock.first is not None]
    lasts = [clock.last for clock in clocks if clock.last is not None]
    tpots = [tpot for clock in clocks if (tpot := clock.tpot) is not None]
    first = min(firsts, default=None)
    return Timings(
        queue_s=None if first_scheduled is None else first_scheduled - arrival,
        prefill_s=None if first_scheduled is None or first is None else first - first_scheduled,
        ttft_s=None if first is None else first - arrival,
        tpot_s=sum(tpots) / len(tpots) if tpots else None,
        e2e_s=max(lasts, default=now) - arrival,
    )
