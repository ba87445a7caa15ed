"""Latencies and counters by their definitions, on one monotonic clock.

queue = arrival to first scheduled; prefill = first scheduled to first token; TTFT = arrival to first
token; TPOT = (e2e - TTFT) / (n - 1), none for one token; ITL = gaps between tokens, where k tokens
that arrive together share the gap before them; e2e = arrival to last token. Of engine steps: decode =
time charged to the decode rows of a step without drafts, verify = of a step that verified drafts.
Counter names follow vLLM's with the prefix `inferd_`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferd_client.protocol import Latency, Timings

if TYPE_CHECKING:
    from inferd.link import StepStats

WINDOW_S = 300.0
MAX_SAMPLES = 4096
LATENCIES = ("queue", "prefill", "ttft", "tpot", "itl", "e2e", "decode", "verify")


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


class Metrics:
    """All counters and latency windows of the daemon."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self._windows = {name: LatencyWindow() for name in LATENCIES}
        self._completions: deque[float] = deque(maxlen=256)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter; labels become part of its Prometheus name."""
        suffix = "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""
        key = f"inferd_{name}{suffix}"
        self.counters[key] = self.counters.get(key, 0) + amount

    def record(self, name: str, value: float, now: float) -> None:
        self._windows[name].record(value, now)

    def finished(self, reason: str, measured: Timings, now: float) -> None:
        """Note the end of a request that was served."""
        self.count("request_success_total", finished_reason=reason)
        self._completions.append(now)
        for name in ("queue", "prefill", "ttft", "tpot", "e2e"):
            value = getattr(measured, f"{name}_s")
            if value is not None and measured.ttft_s is not None:
                self.record(name, value, now)

    def step(self, stats: StepStats, previous: StepStats | None) -> None:
        """Add one step of an engine; `previous` is the last one of the same engine process."""
        for name in ("prefill_tokens", "decode_tokens", "prefill_s", "decode_s"):
            self.count(
                f"{name.replace('_s', '_seconds')}_total" if name.endswith("_s") else f"{name}_total",
                getattr(stats, name),
            )
        self.count("spec_decode_num_draft_tokens_total", stats.drafted)
        self.count("spec_decode_num_accepted_tokens_total", stats.accepted)
        if stats.decode_s > 0:
            self.record("verify" if stats.verifying else "decode", stats.decode_s, stats.now)
        for counter, field in _TOTALS:
            self.count(counter, getattr(stats, field) - (getattr(previous, field) if previous else 0))

    def retry_after_ms(self, waiting: int, now: float) -> int:
        """Guess when a place in a full queue is free again, from the recent rate of completions."""
        recent = [when for when in self._completions if when > now - 10]
        if not recent:
            return 1000
        rate = len(recent) / max(now - recent[0], 0.1)
        return int(min(30_000, max(50, 1000 * math.sqrt(waiting) / rate)))

    def latencies(self, now: float) -> dict[str, Latency]:
        return {name: window.summary(now) for name, window in self._windows.items()}


_TOTALS = (
    ("num_preemptions_total", "preemptions"),
    ("prefix_cache_queries_total", "prefix_queries"),
    ("prefix_cache_hits_total", "prefix_hits"),
)
