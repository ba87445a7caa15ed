"""Lengths that benchmarks ask for."""

from __future__ import annotations

import numpy as np
import pytest

from inferd.bench.serve.profiles import LONG, NAMES, SHORT, Lengths, named, parse, recorded
from inferd_client.protocol import TrafficReport


def draws(text: str, count: int = 4000) -> np.ndarray:
    return parse(text).draw(np.random.default_rng(1), count)


def test_distributions_have_the_parameters_they_were_given() -> None:
    assert set(draws("77")) == {77}
    flat = draws("uniform:10:20")
    assert (flat.min(), flat.max()) == (10, 20)
    assert flat.mean() == pytest.approx(15, abs=0.3)
    bell = draws("normal:500:50")
    assert bell.mean() == pytest.approx(500, rel=0.01)
    assert bell.std() == pytest.approx(50, rel=0.05)
    skewed = draws("lognormal:200:0.6")
    assert np.median(skewed) == pytest.approx(200, rel=0.05)
    assert np.log(skewed).std() == pytest.approx(0.6, rel=0.05)


def test_no_length_is_below_one() -> None:
    assert draws("normal:2:50").min() == 1


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "0", "nan", "inf", "uniform:5", "uniform:9:3", "gamma:1:2", "normal:5:-1", "fixed", "1:2"]
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is none of|lengths are|not all numbers"):
        parse(text)


@pytest.mark.parametrize("name", NAMES)
def test_profiles_are_what_their_letters_say(name: str) -> None:
    (found,) = named(name).draw(np.random.default_rng(0), 1)
    assert found == Lengths({"S": SHORT, "L": LONG}[name[0]], {"S": SHORT, "L": LONG}[name[2]])
    assert str(found.input) in named(name).describe()
    assert str(found.output) in named(name).describe()


def test_recorded_lengths_stay_together() -> None:
    """A long input keeps its short output, and what was cached of it."""
    report = TrafficReport(model="m", since=0, until=9, recent=((0, 1000, 5, 800), (5, 10, 300, 0)))
    found = recorded(report).draw(np.random.default_rng(0), 200)
    assert set(found) == {Lengths(1000, 5, 800), Lengths(10, 300, 0)}
    text = recorded(report).describe()
    assert "10 to 1000" in text
    assert "79 % of the input shared" in text
