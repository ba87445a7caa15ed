"""Lengths of the requests of a benchmark: named profiles, distributions, or what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from inferd_client.protocol import TrafficReport

SHORT, LONG = 128, 1024
"""Tokens that the names of the profiles stand for."""


class Lengths(NamedTuple):
    """What one request asks for, in tokens."""

    input: int
    output: int
    shared: int = 0
    """Of the input, how much at its head other requests have too."""


class Profile(Protocol):
    """Where lengths come from."""

    def draw(self, rng: np.random.Generator, count: int) -> list[Lengths]: ...

    def describe(self) -> str:
        """Return the lengths in words, for the head of a report."""
        ...


@dataclass(frozen=True)
class Distribution:
    """One length: fixed, or drawn anew for each request."""

    kind: Literal["fixed", "uniform", "normal", "lognormal"]
    a: float
    """The length; the least one; the mean; the median."""
    b: float = 0.0
    """Nothing; the greatest length; the deviation; the deviation of the logarithm."""

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        match self.kind:
            case "fixed":
                found = np.full(count, self.a)
            case "uniform":
                found = rng.integers(int(self.a), int(self.b) + 1, count)
            case "normal":
                found = rng.normal(self.a, self.b, count)
            case "lognormal":
                found = rng.lognormal(np.log(self.a), self.b, count)
        return np.maximum(1, np.rint(found)).astype(int)

    def __str__(self) -> str:
        match self.kind:
            case "fixed":
                return f"{self.a:g}"
            case "uniform":
                return f"{self.a:g} to {self.b:g}, uniform"
            case "normal":
                return f"normal, mean {self.a:g}, deviation {self.b:g}"
            case "lognormal":
                return f"lognormal, median {self.a:g}, sigma {self.b:g}"


def parse(text: str) -> Distribution:
    """Read `128`, `uniform:64:256`, `normal:128:30` or `lognormal:128:0.6`. Raises ValueError."""
    kind, *numbers = text.split(":") if ":" in text else ("fixed", text)
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        raise ValueError(f"{text!r}: {numbers} are not all numbers") from None
    if kind not in ("fixed", "uniform", "normal", "lognormal") or len(values) != (1 if kind == "fixed" else 2):
        raise ValueError(f"{text!r} is none of N, uniform:LOW:HIGH, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA")
    if (
        not all(np.isfinite(values))
        or values[0] < 1
        or min(values) < 0
        or (kind == "uniform" and values[1] < values[0])
    ):
        raise ValueError(f"{text!r}: lengths are at least 1, deviations at least 0")
    return Distribution(kind, *values)


@dataclass(frozen=True)
class Independent:
    """Input and output lengths that know nothing of each other."""

    name: str
    input: Distribution
    output: Distribution
    shared: int = 0

    def draw(self, rng: np.random.Generator, count: int) -> list[Lengths]:
        inputs, outputs = self.input.draw(rng, count).tolist(), self.output.draw(rng, count).tolist()
        return [Lengths(i, o, min(self.shared, i - 1)) for i, o in zip(inputs, outputs, strict=True)]

    def describe(self) -> str:
        shared = f", the first {self.shared} of the input shared" if self.shared else ""
        return f"{self.name}: input {self.input}, output {self.output} tokens{shared}"


def named(name: str, *, shared: int = 0) -> Independent:
    """Return SISO, SILO, LISO or LILO: short or long input, short or long output."""
    lengths = [Distribution("fixed", LONG if letter == "L" else SHORT) for letter in (name[0], name[2])]
    return Independent(name, *lengths, shared=shared)


NAMES = ("SISO", "SILO", "LISO", "LILO")


@dataclass(frozen=True)
class Recorded:
    """Lengths of the traffic record, drawn jointly, with as much shared as was found in the prefix cache."""

    model: str
    samples: Sequence[Lengths]

    def draw(self, rng: np.random.Generator, count: int) -> list[Lengths]:
        return [self.samples[i] for i in rng.integers(0, len(self.samples), count)]

    def describe(self) -> str:
        inputs, outputs = (np.asarray([s[k] for s in self.samples]) for k in (0, 1))
        spread = [f"{np.median(v):.0f} median, {v.min()} to {v.max()}" for v in (inputs, outputs)]
        return (
            f"recorded: {len(self.samples)} sequences of {self.model}, input {spread[0]}, output {spread[1]} tokens, "
            f"{100 * sum(s.shared for s in self.samples) / inputs.sum():.0f} % of the input shared"
        )


def recorded(report: TrafficReport) -> Recorded:
    """Take the latest sequences of a traffic record, which must have some."""
    return Recorded(
        report.model, [Lengths(max(1, i), max(1, o), min(c, max(0, i - 1))) for _, i, o, c in report.recent]
    )
