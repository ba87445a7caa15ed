"""When the books are closed: once a second, between steps, by what the meters say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from inferd.config.schema import Config, Cost
from inferd.devices import Gpu
from inferd.front.accounts import PATIENCE_S, Accounts
from inferd.front.records import Charged
from inferd.link import Charges
from inferd.loop import Loop
from inferd_client.protocol import Timings

GPU = Gpu(index=0, uuid="GPU-0", name="H100", energy_j=0.0)


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Machine:
    """A GPU that draws 50 W while idle and 300 W in a step, and one model on it."""

    time: Time = field(default_factory=Time)
    joules: float = 0.0
    last_step: float = 0.0
    busy_since: float | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        self.loop = Loop(self.time)
        self.request: Any = SimpleNamespace(charged=Charged(), num_output=10)
        self.model: Any = SimpleNamespace(
            requests={"r": self.request}, progress_age=self._progress_age, last_step=self.last_step
        )
        config = Config(cost=Cost(tariff_kwh=3.6, currency="EUR", watts_idle=50.0, watts_busy=0.0))
        self.accounts = Accounts(config, self, lambda: [self.model], self.loop)  # pyright: ignore[reportArgumentType]

    def _progress_age(self, now: float) -> float | None:
        return None if self.busy_since is None else now - self.model.last_step

    def gpus_in_use(self) -> list[Gpu]:
        return [replace(GPU, energy_j=self.joules if self.measured else None)]

    def cpu_energy_j(self) -> None:
        return None

    def note_driver(self) -> None:
        pass

    def wait(self, seconds: float, watts: float) -> None:
        """Let time pass, with what is due in it."""
        for _ in range(round(seconds * 10)):
            self.time.now += 0.1
            self.joules += watts * 0.1
            while self.loop._timers and self.loop._timers[0][0] <= self.time.now + 1e-9:
                timer = self.loop._timers.pop(0)[2]
                assert timer.action is not None
                timer.action()

    def step(self, seconds: float) -> None:
        self.busy_since = self.model.last_step = self.time.now
        self.wait(seconds, 300.0)
        self.model.last_step = self.time.now
        self.busy_since = None
        self.accounts.charge(self.model, Charges(decode={"r": seconds / 2, "gone": seconds / 2}))


def test_a_long_step_is_not_taken_for_idling() -> None:
    """Five seconds in one step: all its energy goes to the request and its mate, none to idle time."""
    machine = Machine()
    machine.wait(10, 50.0)
    machine.step(5.0)
    machine.wait(10, 50.0)
    found = machine.accounts.status()
    assert (found.source, found.meters) == ("measured", ("nvml H100",))
    assert found.joules == pytest.approx(machine.joules - 50.0, abs=60)
    assert found.idle == pytest.approx(20 * 50 * 1e-6, rel=0.06)
    for _ in range(40):
        machine.step(0.5)
        machine.wait(0.5, 50.0)
    machine.wait(3, 50.0)
    later = machine.accounts.status()
    total = (later.prefill or 0) + (later.decode or 0) + (later.idle or 0)
    assert total == pytest.approx(machine.joules * 1e-6, rel=0.02)


def test_a_step_that_hangs_holds_the_books_open_only_so_long() -> None:
    machine = Machine()
    machine.wait(3, 50.0)
    before = machine.accounts.status().idle
    machine.busy_since = machine.model.last_step = machine.time.now
    machine.wait(PATIENCE_S - 3, 300.0)
    assert machine.accounts.status().idle == before
    machine.wait(5, 300.0)
    assert (machine.accounts.status().idle or 0) > (before or 0)


def test_a_request_is_told_its_energy_and_money() -> None:
    machine = Machine()
    for _ in range(30):
        machine.step(0.5)
        machine.wait(0.5, 50.0)
    cost = machine.accounts.close_request(machine.request, Timings(ttft_s=0.1))
    assert (cost.source, cost.currency, cost.good, cost.decode_s) == ("measured", "EUR", True, pytest.approx(7.5))
    assert cost.joules == pytest.approx(7.5 * 300, rel=0.05)
    assert cost.decode == pytest.approx(7.5 * 300 * 1e-6, rel=0.08)
    assert cost.per_million == pytest.approx((cost.decode or 0) * 1e5)


def test_a_meter_that_falls_silent_is_no_measurement() -> None:
    machine = Machine()
    machine.wait(3, 50.0)
    assert machine.accounts.status().source == "measured"
    machine.measured = False
    machine.wait(3, 50.0)
    found = machine.accounts.status()
    assert (found.source, found.meters, found.watts) == ("n/a", (), None)
