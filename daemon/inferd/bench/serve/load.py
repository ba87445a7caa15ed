"""Send a plan to a daemon and note when what came back. One asyncio loop, one client a session."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from inferd.bench.serve.plan import Planned
from inferd_client import NO_RETRY, AsyncClient
from inferd_client.errors import DaemonError, InferdError
from inferd_client.protocol import Cost, Timings, Usage

Progress = Callable[[int], None]
"""Told how many requests are over."""


@dataclass(slots=True)
class Outcome:
    """What became of one request; seconds after the start of the run."""

    planned: Planned
    due: float
    """When it should have been sent: what latencies count from, so that a generator or a daemon that falls behind
    does not hide the wait (coordinated omission)."""
    sent: float
    tokens: list[tuple[float, int]] = field(default_factory=list)
    """Messages with tokens: when, how many."""
    end: float = 0.0
    error: str = ""
    """Code of the error that ended it."""
    usage: Usage | None = None
    timings: Timings | None = None
    cost: Cost | None = None

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.tokens)

    @property
    def ttft(self) -> float | None:
        return self.tokens[0][0] - self.due if self.tokens else None

    @property
    def tpot(self) -> float | None:
        """(last - first) / (n - 1); None for a single token."""
        n = self.num_tokens
        return (self.tokens[-1][0] - self.tokens[0][0]) / (n - 1) if n > 1 else None

    @property
    def e2e(self) -> float:
        return self.end - self.due

    @property
    def gaps(self) -> Iterator[float]:
        """ITL: gaps between tokens; those that came together share the gap before them."""
        for i, (when, count) in enumerate(self.tokens):
            if i:
                yield from [(when - self.tokens[i - 1][0]) / count] * count
            else:
                yield from [0.0] * (count - 1)


class LoadGenerator:
    """Runs plans against one model of a daemon."""

    def __init__(
        self, clients: Sequence[AsyncClient], model: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clients = clients
        self._model = model
        self._clock = clock

    async def closed_loop(
        self, plan: Iterable[Planned], concurrency: int, *, until: float = math.inf, progress: Progress = lambda _: None
    ) -> list[Outcome]:
        """Keep `concurrency` requests in flight until the plan or the time (seconds) is over."""
        start, queue = self._clock(), iter(plan)
        outcomes: list[Outcome] = []

        async def place() -> None:
            while (due := self._clock() - start) < until and (planned := next(queue, None)) is not None:
                outcomes.append(await self._send(planned, due, start))
                progress(len(outcomes))

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(place())
        return outcomes

    async def open_loop(
        self, schedule: Iterable[tuple[float, Planned]], *, progress: Progress = lambda _: None
    ) -> list[Outcome]:
        """Send each request when it is due, however many are unanswered."""
        start = self._clock()
        outcomes: list[Outcome] = []

        async def one(planned: Planned, due: float) -> None:
            outcomes.append(await self._send(planned, due, start))
            progress(len(outcomes))

        async with asyncio.TaskGroup() as group:
            for due, planned in schedule:
                await asyncio.sleep(max(0.0, due - (self._clock() - start)))
                group.create_task(one(planned, due))
        return outcomes

    async def _send(self, planned: Planned, due: float, start: float) -> Outcome:
        outcome = Outcome(planned, due, sent=self._clock() - start)
        client = self._clients[planned.index % len(self._clients)]
        stream = client.generate(
            planned.prompt,
            model=self._model,
            stream=True,
            max_tokens=planned.output,
            ignore_eos=True,
            temperature=0,
            record=False,
            retry=NO_RETRY,
        )
        try:
            async for piece in stream:
                if piece.ids:
                    outcome.tokens.append((self._clock() - start, len(piece.ids)))
            done = stream.completion
            outcome.usage, outcome.timings, outcome.cost = done.usage, done.timings, done.cost
        except DaemonError as error:
            outcome.error = str(error.code)
        except InferdError as error:
            outcome.error = type(error).__name__
        outcome.end = outcome.tokens[-1][0] if outcome.tokens and not outcome.error else self._clock() - start
        return outcome
