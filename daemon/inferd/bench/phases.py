"""What one engine does in each phase: a few requests through it, and their times.

Rates are tokens a second, times seconds. Every function raises RuntimeError when a request failed.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from inferd.bench.workloads import long_tailed, uniform
from inferd.engine.offline import Result, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferd.engine.engine import Engine
    from inferd.link import Submit


class Batched(NamedTuple):
    """Several sequences at once."""

    decode: float
    """Rate from the last sequence's first token to the first sequence's end: all of them decode."""
    total: float
    """Generated tokens over the whole time, prompts included."""


class Mixed(NamedTuple):
    """Requests of many lengths, all at once."""

    total: float
    ttft: float
    """Median, as is `tpot`."""
    tpot: float
    worst_gap: float
    """Longest time between two tokens of one answer."""


def prefill(engine: Engine, vocab: int, seed: int, *, prompt: int) -> float:
    """Return the rate at which one prompt is read, up to its first token."""
    (result,) = _run(engine, uniform(seed, vocab, count=1, prompt=prompt, output=1))
    return prompt / result.ttft


def decode(engine: Engine, vocab: int, seed: int, *, context: int, output: int) -> float:
    """Return the rate of one sequence after a prompt of `context` tokens (at least one)."""
    (result,) = _run(engine, uniform(seed, vocab, count=1, prompt=max(1, context), output=output))
    assert result.tpot is not None
    return 1 / result.tpot


def batched(engine: Engine, vocab: int, seed: int, *, count: int, prompt: int, output: int) -> Batched:
    """Run `count` equal requests that arrive together; `output` must leave them some time side by side."""
    results = _run(engine, uniform(seed, vocab, count=count, prompt=prompt, output=output))
    start, end = max(r.times[0] for r in results), min(r.times[-1] for r in results)
    together = sum(sum(start < time <= end for time in r.times) for r in results)
    whole = max(r.times[-1] for r in results) - min(r.arrival for r in results)
    return Batched(together / (end - start) if end > start else 0.0, sum(len(r.ids) for r in results) / whole)


def mixed(engine: Engine, vocab: int, seed: int, *, count: int, prompt: int, output: int) -> Mixed:
    """Run requests of log-normal lengths around the medians `prompt` and `output`."""
    results = _run(engine, long_tailed(seed, vocab, count=count, prompt=prompt, output=output))
    whole = max(r.times[-1] for r in results) - min(r.arrival for r in results)
    return Mixed(
        total=sum(len(r.ids) for r in results) / whole,
        ttft=median(r.ttft for r in results),
        tpot=median(r.tpot for r in results if r.tpot is not None),
        worst_gap=max(later - sooner for r in results for sooner, later in pairwise(r.times)),
    )


def _run(engine: Engine, requests: Sequence[Submit]) -> list[Result]:
    results = list(run(engine, requests).values())
    failed = [result.error.message for result in results if result.error]
    if failed:
        raise RuntimeError(f"a request of the benchmark failed: {failed[0]}")
    return results
