"""Money for device time: what requests are charged, what idling costs, and what a million good tokens cost.

cost = (mean power x tariff + hardware price per hour) x hours. A busy second has a price; requests are charged
the seconds that engines report for them. Where power is measured, the price follows the meter, and what was
charged too much or too little in one interval is made up for in the next, so that the sum over requests, and
of idling, is what the meter says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from inferd_client.protocol import CostStatus

if TYPE_CHECKING:
    from inferd.config.schema import Cost, Slo
    from inferd_client.protocol import Timings

JOULES_PER_KWH = 3.6e6
Source = Literal["measured", "estimated", "n/a"]


@dataclass(slots=True)
class Spent:
    """Sums by what the device did."""

    prefill: float = 0.0
    decode: float = 0.0
    idle: float = 0.0

    @property
    def total(self) -> float:
        return self.prefill + self.decode + self.idle


class CostMeter:
    """Charges requests and keeps the books of one daemon."""

    def __init__(self, prices: Cost, now: float) -> None:
        self._prices = prices
        self._per_joule = prices.tariff_kwh / JOULES_PER_KWH
        self._hardware_s = prices.hardware_price / (prices.lifetime_hours * 3600) if prices.lifetime_hours else 0.0
        self._rate = self._per_joule * prices.watts_busy + self._hardware_s
        self._settled = now
        self._busy = Spent()
        """Device seconds since the last settlement."""
        self._charged = 0.0
        self._owed = 0.0
        """What all busy time so far has cost beyond what requests were charged."""
        self.seconds = Spent()
        self.money = Spent()
        self.joules = Spent()
        self.measured = False
        self.watts: float | None = None
        self.output_tokens = 0
        self.good_tokens = 0

    @property
    def source(self) -> Source:
        """Where the cost comes from; `n/a` where neither a power with its tariff nor a price is known."""
        if self.measured and self._per_joule:
            return "measured"
        known = self._hardware_s or (self._per_joule and (self._prices.watts_busy or self.measured))
        return "estimated" if known else "n/a"

    def charge(self, prefill_s: float, decode_s: float) -> float:
        """Charge the device seconds of a step; the money for one second, by which its requests pay."""
        self._busy.prefill += prefill_s
        self._busy.decode += decode_s
        self._charged += (prefill_s + decode_s) * self._rate
        self.money.prefill += prefill_s * self._rate
        self.money.decode += decode_s * self._rate
        return self._rate

    def settle(self, now: float, joules: float | None = None) -> None:
        """Close an interval in which so much energy was drawn, as a meter says; None = estimate it.

        Call it when no step is under way: a step is charged at its end.
        """
        wall = now - self._settled
        if wall <= 0:
            return
        self._settled = now
        busy_s = self._busy.prefill + self._busy.decode
        active = min(busy_s, wall)
        busy_j, idle_j = self._energy(active, wall - active, joules)
        self.measured = joules is not None
        self.watts = (busy_j + idle_j) / wall if self.measured or self._prices.watts_busy else None
        self._book(busy_s, wall - active, busy_j, idle_j)
        due = self._per_joule * busy_j + self._hardware_s * active
        self._owed += due - self._charged
        self._charged, self._busy = 0.0, Spent()
        if busy_s:
            self._rate = max(0.0, min(2 * due, due + self._owed) / busy_s)

    def _energy(self, active_s: float, idle_s: float, joules: float | None) -> tuple[float, float]:
        """Split the energy of an interval; what idling takes is known from the configuration or by share of time."""
        busy, idle = self._prices.watts_busy * active_s, self._prices.watts_idle * idle_s
        if joules is None:
            return busy, idle
        if not self._prices.watts_idle:
            idle = joules * idle_s / (active_s + idle_s)
        idle = min(joules, idle) if active_s else joules
        return joules - idle, idle

    def _book(self, busy_s: float, idle_s: float, busy_j: float, idle_j: float) -> None:
        for field in ("prefill", "decode"):
            seconds = getattr(self._busy, field)
            setattr(self.seconds, field, getattr(self.seconds, field) + seconds)
            if busy_s:
                setattr(self.joules, field, getattr(self.joules, field) + busy_j * seconds / busy_s)
        self.seconds.idle += idle_s
        self.joules.idle += idle_j
        self.money.idle += self._per_joule * idle_j + self._hardware_s * idle_s

    def delivered(self, tokens: int, *, good: bool) -> None:
        """Note the output of a request that ended."""
        self.output_tokens += tokens
        self.good_tokens += tokens if good else 0

    @property
    def joules_per_busy_second(self) -> float | None:
        """Of all busy time so far; None where power is not known."""
        busy = self.seconds.prefill + self.seconds.decode
        energy = self.joules.prefill + self.joules.decode
        return energy / busy if busy and energy else None

    def status(self, meters: tuple[str, ...]) -> CostStatus:
        """Return the sums since the start, and each part for a million good tokens."""
        source = self.source
        per = None if source == "n/a" or not self.good_tokens else 1e6 / self.good_tokens
        return CostStatus(
            source=source,
            meters=meters,
            currency=self._prices.currency,
            watts=self.watts,
            joules=self.joules.total or None,
            prefill=None if source == "n/a" else self.money.prefill,
            decode=None if source == "n/a" else self.money.decode,
            idle=None if source == "n/a" else self.money.idle,
            per_million=None if per is None else self.money.total * per,
            prefill_per_million=None if per is None else self.money.prefill * per,
            decode_per_million=None if per is None else self.money.decode * per,
            idle_per_million=None if per is None else self.money.idle * per,
            output_tokens=self.output_tokens,
            good_tokens=self.good_tokens,
        )


def is_good(measured: Timings, slo: Slo) -> bool:
    """Whether a request's latencies are within the bounds; a bound of 0 is none, and so is TPOT of one token."""
    late = slo.ttft_ms and (measured.ttft_s is None or measured.ttft_s * 1000 > slo.ttft_ms)
    slow = slo.tpot_ms and measured.tpot_s is not None and measured.tpot_s * 1000 > slo.tpot_ms
    return not late and not slow
