"""What of the traffic is kept, in a form that stays bounded whatever comes.

Lengths are counted in buckets of at most an eighth of their size (as HDR histograms do): quantiles are
upper bounds that are at most 12.5 % too high.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from inferd_client.protocol import TrafficReport

MAX_LENGTH = (1 << 20) - 1
"""Tokens; longer ones count as this long."""
MAX_GAP_MS = (1 << 32) - 1
RECENT = 4096
"""Requests that are remembered one by one."""
MAX_MODELS = 8
"""Past it the model that was idle for longest is forgotten."""
SUB_BITS = 3


def ceiling(value: int, most: int = MAX_LENGTH) -> int:
    """Return the greatest value of the bucket that holds `value`: exact below 16, then within an eighth."""
    value = min(max(value, 0), most)
    shift = max(0, value.bit_length() - SUB_BITS - 1)
    return ((value >> shift) << shift) + (1 << shift) - 1


class Traffic:
    """The record of one model while it is being kept."""

    def __init__(self, model: str, since: float) -> None:
        self.model = model
        self.since = since
        self.until = since
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._lengths: Counter[tuple[int, int]] = Counter()
        self._gaps: Counter[int] = Counter()
        self._reuse: Counter[int] = Counter()
        self._ends: Counter[str] = Counter()
        self._recent: deque[tuple[int, int, int, int]] = deque(maxlen=RECENT)
        self._last_arrival: float | None = None

    def arrived(self, when: float) -> None:
        """Note that a request came, in Unix seconds."""
        if self._last_arrival is not None:
            self._gaps[ceiling(round(1000 * (when - self._last_arrival)), MAX_GAP_MS)] += 1
        self._last_arrival = when
        self.until = max(self.until, when)

    def ended(self, arrival: float, prompt: int, outputs: Iterable[int], cached: int, reason: str) -> None:
        """Note the lengths of a request that ran; each of its choices is a sequence of its own."""
        self.requests += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self._reuse[10 * (10 * cached // prompt) if prompt else 0] += 1
        self._ends[reason] += 1
        for output in outputs:
            self._lengths[ceiling(prompt), ceiling(output)] += 1
            since = max(0, round(1000 * (arrival - self.since)))
            self._recent.append((since, min(prompt, MAX_LENGTH), min(output, MAX_LENGTH), min(cached, MAX_LENGTH)))

    def report(self) -> TrafficReport:
        return TrafficReport(
            model=self.model,
            since=self.since,
            until=self.until,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            lengths=tuple((i, o, count) for (i, o), count in sorted(self._lengths.items())),
            gaps_ms=tuple(sorted(self._gaps.items())),
            reuse_percent=tuple(sorted(self._reuse.items())),
            ends=dict(self._ends),
            recent=tuple(self._recent),
        )

    @classmethod
    def of(cls, report: TrafficReport) -> Traffic:
        """Take up a record where it was left; the gap over a restart is not counted."""
        found = cls(report.model, report.since)
        found.until, found.requests = report.until, report.requests
        found.prompt_tokens, found.cached_tokens = report.prompt_tokens, report.cached_tokens
        found._lengths.update({(i, o): count for i, o, count in report.lengths})
        found._gaps.update(dict(report.gaps_ms))
        found._reuse.update(dict(report.reuse_percent))
        found._ends.update(report.ends)
        found._recent.extend(report.recent)
        return found
