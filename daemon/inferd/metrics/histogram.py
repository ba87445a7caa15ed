"""Cumulative histograms in the sense of Prometheus: fixed bounds, counts that only grow."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Buckets(NamedTuple):
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Values of at most each bound, and of any size: one more than there are bounds."""
    total: float
    """Sum of all values."""


class Histogram:
    """Counts values by upper bound."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def record(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def read(self) -> Buckets:
        running, counts = 0, list[int]()
        for count in self._counts:
            running += count
            counts.append(running)
        return Buckets(self._bounds, tuple(counts), self._total)
