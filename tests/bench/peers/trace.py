"""The served part: requests that arrive at random times, the same for every server, and what clients see of them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from inferd.bench.workloads import poisson, prompts
from tests.bench.peers.contestant import ARRIVALS, OUTPUT, PROMPT, RATE

VOCAB = 40_000
"""Ids are drawn below this, which every model that is compared has."""

Stream = Callable[[Sequence[int], int], AsyncIterator[int]]
"""(prompt ids, tokens to make) to the number of tokens in each event."""


class Seen(NamedTuple):
    """One request: seconds from its arrival to its first token, and between two tokens after that."""

    ttft: float
    tpot: float


async def play(seed: int, stream: Stream) -> list[Seen]:
    """Send every request at its time and follow its tokens."""
    start = time.monotonic()
    texts = prompts(seed, VOCAB, [PROMPT] * ARRIVALS)
    due = [start + after for after in poisson(seed, ARRIVALS, RATE)]
    return await asyncio.gather(*(_follow(at, ids, stream) for at, ids in zip(due, texts, strict=True)))


async def _follow(due: float, ids: Sequence[int], stream: Stream) -> Seen:
    await asyncio.sleep(due - time.monotonic())
    times: list[float] = []
    tokens = 0
    async for count in stream(ids, OUTPUT):
        tokens += count
        times.append(time.monotonic())
    if tokens < OUTPUT:
        raise RuntimeError(f"a request got {tokens} tokens instead of {OUTPUT}")
    return Seen(times[0] - due, (times[-1] - times[0]) / (tokens - 1))


def summary(seen: Sequence[Seen]) -> dict[str, float]:
    """Return median and 95th percentile of both, in ms."""
    values: dict[str, float] = {}
    for name, series in (("TTFT", [s.ttft for s in seen]), ("TPOT", [s.tpot for s in seen])):
        cuts = statistics.quantiles(series, n=20, method="inclusive")
        values |= {f"{name} p50": 1e3 * statistics.median(series), f"{name} p95": 1e3 * cuts[18]}
    return values
