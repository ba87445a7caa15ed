"""Energy and money of a run, as the daemon accounts for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from inferd.bench.serve.summary import Bounds

if TYPE_CHECKING:
    from inferd.bench.serve.load import Outcome
    from inferd_client.protocol import Cost, CostStatus


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a run; None = not known. Money is in `currency`."""

    source: str = "n/a"
    """`measured`, `estimated` or `n/a`."""
    currency: str = ""
    joules: float | None = None
    """The requests' share of what the devices drew."""
    prefill: float | None = None
    decode: float | None = None
    idle: float | None = None
    """Of the daemon while nothing ran, from the last account before the run to the last one in it."""
    per_million: float | None = None
    """All three, for a million good output tokens."""


def spent(outcomes: Sequence[Outcome], bounds: Bounds, before: CostStatus | None, after: CostStatus | None) -> Spent:
    """Add up what the requests were charged, and what idling cost meanwhile."""
    costs = [o.cost for o in outcomes if o.cost is not None]
    if not costs or after is None:
        return Spent()
    prefill, decode = _sum(costs, "prefill"), _sum(costs, "decode")
    idle = None if after.idle is None else after.idle - ((before.idle if before else None) or 0.0)
    good = sum(o.num_tokens for o in outcomes if bounds.good(o))
    money = [part for part in (prefill, decode, idle) if part is not None]
    return Spent(
        source=costs[-1].source,
        currency=after.currency,
        joules=_sum(costs, "joules"),
        prefill=prefill,
        decode=decode,
        idle=idle,
        per_million=1e6 * sum(money) / good if money and good else None,
    )


def _sum(costs: Sequence[Cost], name: str) -> float | None:
    known = [value for cost in costs if (value := getattr(cost, name)) is not None]
    return sum(known) if known else None
