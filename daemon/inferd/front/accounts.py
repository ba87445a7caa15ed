"""Whose device time it was, and what it cost: charges to requests, the meters, the books of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.metrics.cost import CostMeter, is_good
from inferd.metrics.power import PowerMeter
from inferd_client.protocol import Cost, CostStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inferd.config.schema import Config
    from inferd.front.hardware import Hardware
    from inferd.front.model import Model
    from inferd.front.records import Request
    from inferd.link import Charges
    from inferd.loop import Loop
    from inferd_client.protocol import Timings

PERIOD_S = 1.0
PATIENCE_S = 30.0
"""A step that is under way for longer no longer holds up a settlement."""


class Accounts:
    """Settles once a second, between steps."""

    def __init__(self, config: Config, hardware: Hardware, models: Callable[[], Iterable[Model]], loop: Loop) -> None:
        self._config = config
        self._hardware = hardware
        self._models = models
        self._loop = loop
        self._meter = CostMeter(config.cost, loop.clock())
        self._power = PowerMeter()
        self._meters: tuple[str, ...] = ()
        self._settled = loop.clock()
        self._power.read(self._settled, (), hardware.cpu_energy_j())
        loop.after(PERIOD_S, self._tick)

    def charge(self, model: Model, charges: Charges) -> None:
        """Charge the time of a step to its requests; those that have ended leave it to the daemon's books."""
        rate = self._meter.charge(sum(charges.prefill.values()), sum(charges.decode.values()))
        requests = model.requests
        for key, seconds in charges.prefill.items():
            if key in requests:
                requests[key].charged.prefill_s += seconds
                requests[key].charged.prefill += seconds * rate
        for key, seconds in charges.decode.items():
            if key in requests:
                requests[key].charged.decode_s += seconds
                requests[key].charged.decode += seconds * rate

    def close_request(self, request: Request, measured: Timings) -> Cost:
        """Return what a request that ends as served has cost, and count its tokens."""
        good, tokens = is_good(measured, self._config.slo), request.num_output
        self._meter.delivered(tokens, good=good)
        charged, source = request.charged, self._meter.source
        priced = source != "n/a"
        watts = self._meter.joules_per_busy_second
        return Cost(
            source=source,
            currency=self._config.cost.currency,
            prefill=charged.prefill if priced else None,
            decode=charged.decode if priced else None,
            per_million=(charged.prefill + charged.decode) / tokens * 1e6 if priced and tokens else None,
            joules=None if watts is None else watts * (charged.prefill_s + charged.decode_s),
            prefill_s=charged.prefill_s,
            decode_s=charged.decode_s,
            good=good,
        )

    def status(self) -> CostStatus:
        return self._meter.status(self._meters)

    def _tick(self) -> None:
        now = self._loop.clock()
        self._loop.after(PERIOD_S, self._tick)
        self._hardware.note_driver()
        if any(self._in_step(model, now) for model in self._models()):
            return
        drawn = self._power.read(now, self._hardware.gpus_in_use(), self._hardware.cpu_energy_j())
        self._meter.settle(now, drawn.joules)
        self._meters = drawn.meters or self._estimate()
        self._settled = now

    def _in_step(self, model: Model, now: float) -> bool:
        """Whether a step runs since before the last settlement: its time will be charged at its end."""
        age = model.progress_age(now)
        return age is not None and now - self._settled < PATIENCE_S and model.last_step <= self._settled

    def _estimate(self) -> tuple[str, ...]:
        """Say what the estimate rests on."""
        cost = self._config.cost
        parts = {
            "cost.watts_busy": cost.watts_busy and cost.tariff_kwh,
            "cost.hardware_price": cost.hardware_price and cost.lifetime_hours,
        }
        return tuple(name for name, given in parts.items() if given)
