"""The one ratio: an example worked by hand, and books that balance whatever runs and however power swings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.config.schema import Cost, Slo
from inferd.metrics.cost import CostMeter, is_good
from inferd_client.protocol import Timings

PRICES = Cost(
    tariff_kwh=0.36, currency="EUR", hardware_price=8760.0, lifetime_hours=8760.0, watts_busy=100.0, watts_idle=20.0
)
"""A machine that costs 1 EUR an hour, at 0.36 EUR a kWh: 1e-7 EUR a joule."""


def test_an_hour_by_hand() -> None:
    """Half an hour busy, a third of it with prefill, and 2 million tokens of which 1.6 million came in time.

    A busy second: 100 J x 1e-7 + 1/3600 = 2.877778e-4 EUR. Prefill 600 s, decode 1200 s; idle 1800 s at
    20 J x 1e-7 + 1/3600 = 2.797778e-4 EUR.
    """
    meter = CostMeter(PRICES, 0.0)
    rate = meter.charge(600.0, 1200.0)
    assert rate == pytest.approx(2.877778e-4)
    meter.settle(3600.0)
    meter.delivered(1_600_000, good=True)
    meter.delivered(400_000, good=False)
    found = meter.status(("cost.watts_busy",))
    assert (found.source, found.currency, found.meters) == ("estimated", "EUR", ("cost.watts_busy",))
    assert (found.prefill, found.decode, found.idle) == pytest.approx((0.1726667, 0.3453333, 0.5036))
    assert found.per_million == pytest.approx((0.1726667 + 0.3453333 + 0.5036) / 1.6)
    parts = (found.prefill_per_million, found.decode_per_million, found.idle_per_million)
    assert parts == pytest.approx((0.1079167, 0.2158333, 0.31475))
    assert sum(part or 0 for part in parts) == pytest.approx(found.per_million)
    assert (found.output_tokens, found.good_tokens) == (2_000_000, 1_600_000)
    assert found.joules == pytest.approx(1800 * 100 + 1800 * 20)
    assert found.watts == pytest.approx(60.0)
    # the same by the definition: (mean power x tariff + hardware price per hour) / good tokens per hour x 1e6
    assert found.per_million == pytest.approx((0.060 * 0.36 + 1.0) / 1.6e6 * 1e6)


def play(meter: CostMeter, rng: random.Random, *, measured: bool) -> tuple[float, float, float]:
    """Run steps, settle about once a second; return what requests were charged, what was drawn, and the time."""
    now, charged, joules, drawn, settled = 0.0, 0.0, 0.0, 0.0, 0.0
    for _ in range(3000):
        idle, prefill, decode = (rng.choice((0, rng.random() * most)) for most in (0.6, 0.4, 0.4))
        watts = rng.uniform(60, 400)
        now += idle + prefill + decode
        drawn += 25.0 * idle + watts * (prefill + decode)
        rate = meter.charge(prefill, decode)
        shares = [rng.random() for _ in range(rng.randint(1, 5))]
        charged += sum(share / sum(shares) * (prefill + decode) * rate for share in shares)
        if now - settled >= 1.0:
            meter.settle(now, drawn if measured else None)
            joules, drawn, settled = joules + drawn, 0.0, now
    meter.settle(now, drawn if measured else None)
    return charged, joules + drawn, now


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 25.0]))
def test_requests_and_idling_pay_all_that_was_drawn(seed: int, hardware: bool, watts_idle: float) -> None:
    """Power that swings by a factor of six from step to step: still within a percent of the meter."""
    prices = Cost(
        tariff_kwh=3.6, hardware_price=876.0 if hardware else 0.0, lifetime_hours=8760.0, watts_idle=watts_idle
    )
    meter = CostMeter(prices, 0.0)
    charged, joules, seconds = play(meter, random.Random(seed), measured=True)
    total = joules * 1e-6 + (0.1 / 3600 * seconds if hardware else 0.0)
    assert meter.source == "measured"
    assert charged == pytest.approx(meter.money.prefill + meter.money.decode)
    assert charged + meter.money.idle == pytest.approx(total, rel=0.01)
    assert meter.joules.total == pytest.approx(joules)
    assert meter.seconds.total == pytest.approx(seconds)


@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_the_estimate_adds_up_too(seed: int) -> None:
    meter = CostMeter(PRICES, 0.0)
    charged, _, seconds = play(meter, random.Random(seed), measured=False)
    busy = meter.seconds.prefill + meter.seconds.decode
    expected = (100 * busy + 20 * (seconds - busy)) * 1e-7 + seconds / 3600
    assert meter.source == "estimated"
    assert charged + meter.money.idle == pytest.approx(expected, rel=0.01)


def test_engines_that_run_at_once_share_the_machine() -> None:
    """Two engines, each busy all the time: twice the seconds, one machine's cost."""
    meter = CostMeter(PRICES, 0.0)
    for second in range(1, 1001):
        meter.charge(0.0, 1.0)
        meter.charge(0.0, 1.0)
        meter.settle(float(second))
    assert meter.money.idle == 0.0
    assert meter.money.total == pytest.approx(1000 * 2.877778e-4, rel=0.01)


def test_where_nothing_is_known_nothing_is_told() -> None:
    meter = CostMeter(Cost(), 0.0)
    meter.charge(1.0, 1.0)
    meter.settle(4.0)
    meter.delivered(10, good=True)
    found = meter.status(())
    assert (found.source, found.per_million, found.prefill, found.idle, found.watts, found.joules) == (
        "n/a",
        *[None] * 5,
    )
    assert found.good_tokens == 10


@pytest.mark.parametrize(
    ("prices", "joules", "source"),
    [
        (Cost(tariff_kwh=0.3), None, "n/a"),
        (Cost(tariff_kwh=0.3), 50.0, "measured"),
        (Cost(tariff_kwh=0.3, watts_busy=50), None, "estimated"),
        (Cost(hardware_price=10, lifetime_hours=1), None, "estimated"),
        (Cost(hardware_price=10, lifetime_hours=1), 50.0, "estimated"),
        (Cost(hardware_price=10), 50.0, "n/a"),
        (Cost(watts_busy=50), None, "n/a"),
    ],
)
def test_the_source_says_what_was_known(prices: Cost, joules: float | None, source: str) -> None:
    meter = CostMeter(prices, 0.0)
    meter.charge(0.5, 0.5)
    meter.settle(2.0, joules)
    assert meter.source == source
    assert (meter.status(()).idle is None) == (source == "n/a")


def test_an_idle_interval_is_idle_whatever_it_draws() -> None:
    meter = CostMeter(Cost(tariff_kwh=3.6, watts_idle=10.0), 0.0)
    meter.settle(2.0, 90.0)
    assert (meter.joules.idle, meter.money.idle, meter.joules.total) == (90.0, pytest.approx(90e-6), 90.0)
    meter.charge(0.0, 1.0)
    meter.settle(4.0, 90.0)
    assert (meter.joules.idle, meter.joules.decode) == (100.0, 80.0)


def test_joules_are_told_even_without_a_price() -> None:
    meter = CostMeter(Cost(), 0.0)
    meter.charge(0.0, 1.0)
    meter.settle(2.0, 60.0)
    assert (meter.joules.decode, meter.joules.idle, meter.watts) == (30.0, 30.0, 30.0)
    assert meter.joules_per_busy_second == 30.0


@pytest.mark.parametrize(
    ("ttft", "tpot", "slo", "good"),
    [
        (0.5, 0.05, Slo(), True),
        (0.5, 0.05, Slo(ttft_ms=500, tpot_ms=50), True),
        (0.501, 0.05, Slo(ttft_ms=500), False),
        (0.1, 0.051, Slo(tpot_ms=50), False),
        (0.1, None, Slo(ttft_ms=500, tpot_ms=50), True),
        (None, None, Slo(ttft_ms=500), False),
        (None, None, Slo(tpot_ms=50), True),
    ],
)
def test_good_is_within_both_bounds(ttft: float | None, tpot: float | None, slo: Slo, good: bool) -> None:
    assert is_good(Timings(ttft_s=ttft, tpot_s=tpot), slo) is good
