"""Figures of a run: latencies, throughput and goodput with their intervals, from what the clients saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from inferd.bench.serve.statistics import Estimate, estimate, mean, percentile, rate

if TYPE_CHECKING:
    from inferd.bench.serve.load import Outcome

LATENCIES = ("ttft", "tpot", "itl", "e2e")
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Bounds(msgspec.Struct, frozen=True):
    """What a good request keeps to, in seconds; None = no bound."""

    ttft: float | None = None
    tpot: float | None = None

    def __bool__(self) -> bool:
        return self.ttft is not None or self.tpot is not None

    def good(self, outcome: Outcome) -> bool:
        """Whether a request was answered in time. A single token has no TPOT to miss."""
        if outcome.error or outcome.ttft is None:
            return False
        in_time = self.ttft is None or outcome.ttft <= self.ttft
        return in_time and (self.tpot is None or outcome.tpot is None or outcome.tpot <= self.tpot)


class Goodput(msgspec.Struct, frozen=True):
    """What was answered within the bounds, of all that was asked."""

    share: Estimate | None
    requests_s: Estimate | None
    tokens_s: Estimate | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are seconds."""

    load: str
    requests: int
    failed: dict[str, int]
    """By the code of the error."""
    duration: float
    """From the first due request to the last token."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    latency: dict[str, dict[str, Estimate | None]]
    """ttft, tpot, itl, e2e; each with mean, p50, p95, p99. Of requests that were answered, from when they were due."""
    output_tokens_s: Estimate | None
    total_tokens_s: Estimate | None
    requests_s: Estimate | None
    bounds: Bounds
    goodput: Goodput | None
    """None without bounds."""
    lag: float
    """Longest time by which the generator itself sent late."""


def summarize(load: str, outcomes: Sequence[Outcome], bounds: Bounds) -> Summary:
    """Reduce a run to its figures."""
    answered = [o for o in outcomes if not o.error]
    duration = max((o.end for o in outcomes), default=0.0) - min((o.due for o in outcomes), default=0.0)
    usages = [o.usage for o in outcomes if o.usage is not None]
    tokens = [(when, count) for o in outcomes for when, count in o.tokens]
    prompts = [(o.tokens[0][0], o.usage.prompt_tokens) for o in answered if o.usage is not None and o.tokens]
    return Summary(
        load=load,
        requests=len(outcomes),
        failed=dict(Counter(o.error for o in outcomes if o.error)),
        duration=duration,
        prompt_tokens=sum(u.prompt_tokens for u in usages),
        cached_tokens=sum(u.cached_tokens for u in usages),
        output_tokens=sum(o.num_tokens for o in outcomes),
        drafted_tokens=sum(u.drafted_tokens for u in usages),
        accepted_tokens=sum(u.accepted_tokens for u in usages),
        latency={name: _spread(_values(answered, name)) for name in LATENCIES},
        output_tokens_s=_rate(tokens, duration),
        total_tokens_s=_rate(tokens + prompts, duration),
        requests_s=_rate([(o.end, 1) for o in answered], duration),
        bounds=bounds,
        goodput=_goodput(outcomes, bounds, duration) if bounds else None,
        lag=max((o.sent - o.due for o in outcomes), default=0.0),
    )


def _values(outcomes: Sequence[Outcome], name: str) -> list[list[float]]:
    """Return the samples of one latency, a group a request."""
    if name == "itl":
        return [list(o.gaps) for o in outcomes]
    found = [getattr(o, name) for o in outcomes]
    return [[value] for value in found if value is not None]


def _spread(groups: list[list[float]]) -> dict[str, Estimate | None]:
    statistics = {"mean": mean} | {name: percentile(share) for name, share in SHARES.items()}
    return {name: estimate(groups, statistic) for name, statistic in statistics.items()}


def _goodput(outcomes: Sequence[Outcome], bounds: Bounds, duration: float) -> Goodput:
    good = [o for o in outcomes if bounds.good(o)]
    return Goodput(
        share=estimate([[float(bounds.good(o))] for o in outcomes], mean),
        requests_s=_rate([(o.end, 1) for o in good], duration),
        tokens_s=_rate([event for o in good for event in o.tokens], duration),
    )


def _rate(events: Sequence[tuple[float, int]], duration: float) -> Estimate | None:
    return rate([when for when, _ in events], [count for _, count in events], duration)
