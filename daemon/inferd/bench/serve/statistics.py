"""Estimates with 95 % bootstrap intervals (Efron 1979; percentile method)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

RESAMPLES = 1000
SLICES = 20
"""Parts of a run that stand for its fluctuation where a rate is estimated."""

Statistic = Callable[[np.ndarray], float]


class Estimate(msgspec.Struct, frozen=True):
    """A figure and the interval it is known to; a single sample has no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        bounds = [None if bound is None else factor * bound for bound in (self.low, self.high)]
        return Estimate(factor * self.value, *bounds)


def estimate(groups: Sequence[Sequence[float]], statistic: Statistic, *, seed: int = 0) -> Estimate | None:
    """Estimate a statistic of all values; None without any.

    Values of one group hang together (the gaps of one answer), so whole groups are drawn.
    """
    filled = [np.asarray(group, dtype=float) for group in groups if len(group)]
    if not filled:
        return None
    value = float(statistic(np.concatenate(filled)))
    if len(filled) < 2:
        return Estimate(value)
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(filled), (_resamples(filled), len(filled)))
    found = [statistic(np.concatenate([filled[i] for i in draw])) for draw in draws]
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def percentile(share: float) -> Statistic:
    """Return the percentile by nearest rank: a value that was seen."""
    return lambda values: float(np.quantile(values, share, method="inverted_cdf"))


def mean(values: np.ndarray) -> float:
    return float(values.mean())


def rate(times: Sequence[float], weights: Sequence[float], duration: float) -> Estimate | None:
    """Estimate how much comes a second from when it came; the interval is over equal slices of the run."""
    if duration <= 0:
        return None
    slices = np.histogram(times, bins=SLICES, range=(0.0, duration), weights=weights)[0] * SLICES / duration
    return estimate([[value] for value in slices], mean)


def _resamples(groups: Sequence[np.ndarray]) -> int:
    """Fewer where there are very many values: the work is bounded, the interval a little coarser."""
    return int(np.clip(2e7 / sum(map(len, groups)), 200, RESAMPLES))
