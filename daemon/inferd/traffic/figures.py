"""What sizing and people want to know of a traffic record: histograms, quantiles singly and jointly, rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from inferd_client.protocol import TrafficReport

QUANTILES = (0.5, 0.95, 0.99)


class Box(NamedTuple):
    """Input and output lengths that a share of all sequences keep within, both at once."""

    input: int
    output: int


def inputs(report: TrafficReport) -> Counter[int]:
    """Return the histogram of input lengths (ISL), by the greatest length of each bucket."""
    return _count((i, n) for i, _, n in report.lengths)


def outputs(report: TrafficReport) -> Counter[int]:
    """Return the histogram of output lengths (OSL)."""
    return _count((o, n) for _, o, n in report.lengths)


def totals(report: TrafficReport) -> Counter[int]:
    """Return the histogram of input plus output: the tokens of KV that a sequence ends with."""
    return _count((i + o, n) for i, o, n in report.lengths)


def quantile(histogram: Counter[int], share: float) -> int | None:
    """Return the least bucket bound that at least this share of the samples keeps to; None without samples."""
    needed = share * histogram.total()
    seen = 0
    for bound in sorted(histogram):
        seen += histogram[bound]
        if seen >= needed - 1e-9:
            return bound
    return None


def box(report: TrafficReport, share: float) -> Box | None:
    """Return the joint quantile: both lengths at the lowest common marginal quantile that covers this share.

    The marginal P95s together cover less than 95 % unless long inputs have the long outputs; a size that shall
    hold for 95 % of the sequences needs the joint one.
    """
    isl, osl = inputs(report), outputs(report)
    shares = sorted({s for histogram in (isl, osl) for s in _cumulative(histogram) if s >= share - 1e-9})
    for level in shares:
        input, output = quantile(isl, level), quantile(osl, level)
        assert input is not None
        assert output is not None
        if coverage(report, input, output) >= share - 1e-9:
            return Box(input, output)
    return None


def coverage(report: TrafficReport, input: int, output: int) -> float:
    """Return the share of sequences with both lengths within the bounds."""
    total = sum(n for *_, n in report.lengths)
    return sum(n for i, o, n in report.lengths if i <= input and o <= output) / total if total else 0.0


def rate(report: TrafficReport) -> float | None:
    """Return the requests a second while they came: over the gaps that were seen."""
    seconds = sum(gap * n for gap, n in report.gaps_ms) / 1000
    return sum(n for _, n in report.gaps_ms) / seconds if seconds else None


def _count(pairs: Iterable[tuple[int, int]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for bound, count in pairs:
        found[bound] += count
    return found


def _cumulative(histogram: Counter[int]) -> Iterable[float]:
    seen, total = 0, histogram.total()
    for bound in sorted(histogram):
        seen += histogram[bound]
        yield seen / total
