"""Requests of the benchmarks, seeded. Greedy and of fixed length, so that every run does the same work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from inferd.link import Submit
from inferd_client.protocol import SamplingParams

FIRST_ID = 100
"""Ids below are special tokens in many vocabularies."""


def prompts(seed: int, vocab: int, lengths: Sequence[int]) -> list[list[int]]:
    """Return token ids without structure: no prefix is shared, and no draft can guess them."""
    rng = Random(seed)
    return [[rng.randrange(min(FIRST_ID, vocab - 1), vocab) for _ in range(length)] for length in lengths]


def submit(key: str, prompt: Sequence[int], output: int) -> Submit:
    """A greedy request that runs exactly to its length."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, seed=1)
    return Submit(key=key, client="bench", prompt=list(prompt), sampling=sampling)


def uniform(seed: int, vocab: int, *, count: int, prompt: int, output: int) -> list[Submit]:
    """Requests of one size."""
    return [submit(f"r{i}", ids, output) for i, ids in enumerate(prompts(seed, vocab, [prompt] * count))]


def long_tailed(seed: int, vocab: int, *, count: int, prompt: int, output: int) -> list[Submit]:
    """Log-normal lengths around the medians `prompt` and `output`, as chat traffic has them; cut at four times."""
    rng = Random(seed)

    def lengths(median: int, spread: float) -> list[int]:
        drawn = [median * math.exp(rng.gauss(0.0, spread)) for _ in range(count)]
        return [max(4, min(4 * median, round(length))) for length in drawn]

    sizes = zip(prompts(seed, vocab, lengths(prompt, 0.6)), lengths(output, 0.9), strict=True)
    return [submit(f"r{i}", ids, tokens) for i, (ids, tokens) in enumerate(sizes)]


def poisson(seed: int, count: int, rate: float) -> list[float]:
    """Return arrival times in seconds, `rate` a second on average, the first at 0."""
    rng = Random(seed)
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + rng.expovariate(rate))
    return times
