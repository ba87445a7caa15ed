"""A benchmark from its settings to its figures: the model made ready, warmed up, loaded, summed up."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

import inferd
from inferd.bench.serve.load import LoadGenerator, Outcome
from inferd.bench.serve.plan import TEXT, Planned, arrivals, requests
from inferd.bench.serve.profiles import Profile
from inferd.bench.serve.spent import Spent, spent
from inferd.bench.serve.summary import Bounds, Summary, summarize
from inferd_client import AsyncClient, Timeouts
from inferd_client.protocol import ModelStatus, StatusReply

IDLE_S = 120.0
WARMUP_OUTPUT = 16

Progress = Callable[[str, int, int], None]
"""Phase, done, of how many (0 = not known)."""


@dataclass(frozen=True)
class Load:
    """How requests arrive: `rate` a second by a Poisson process, or `concurrency` of them at any time."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:g} a second"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    profile: Profile
    loads: Sequence[Load]
    model: str = ""
    requests: int = 100
    duration: float | None = None
    """Seconds during which requests are sent, in place of their number."""
    warmup: int = 4
    clients: int = 1
    bounds: Bounds = field(default_factory=Bounds)
    seed: int = 0


class Environment(msgspec.Struct, frozen=True):
    """What was measured on: figures mean nothing without it."""

    inferd: str
    machine: str
    cpus: int
    model: str
    device: str
    dtype: str
    plugins: dict[str, str]
    exactness: str
    context: int | None


class Run(NamedTuple):
    summary: Summary
    spent: Spent
    outcomes: list[Outcome]


class Report(NamedTuple):
    environment: Environment
    lengths: str
    """The lengths of the profile in words."""
    clipped: int
    """Requests that were cut to the context."""
    runs: list[Run]


async def benchmark(
    connect: Callable[..., AsyncClient], settings: Settings, progress: Progress = lambda *_: None
) -> Report:
    """Run every load of the settings, one after the other. Raises what the client raises, ValueError for lengths.

    `connect` makes a client of the daemon, by the keywords `name` and `timeouts`.
    """
    timeouts = Timeouts(idle=IDLE_S)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(name=f"bench-{i}", timeouts=timeouts))
            for i in range(settings.clients)
        ]
        model = await _ready(clients[0], settings.model, progress)
        vocabulary = await clients[0].tokenize(TEXT, model=model.name, add_bos=False)
        generator = LoadGenerator(clients, model.name)
        environment = _environment(model, await _context(clients[0], model))
        plan = requests(settings.profile, vocabulary, context=environment.context, seed=settings.seed)
        await _warm_up(generator, plan, settings, progress)
        runs = []
        for load in settings.loads:
            before = (await clients[0].status()).cost
            outcomes = await _send(generator, load, plan, settings, progress)
            cost = spent(outcomes, settings.bounds, before, (await clients[0].status()).cost)
            runs.append(Run(summarize(str(load), outcomes, settings.bounds), cost, outcomes))
        clipped = sum(outcome.planned.clipped for run in runs for outcome in run.outcomes)
        return Report(environment, settings.profile.describe(), clipped, runs)


async def _ready(client: AsyncClient, name: str, progress: Progress) -> ModelStatus:
    """Return the model once it serves; one that does already is not loaded, which takes an admin over tcp."""
    status = await client.status()
    wanted = name or status.default_model
    found = _loaded(status, wanted)
    if found is None or found.state != "ready":
        await client.load(wanted, on_progress=lambda p: progress(p.reason or "loading", p.done, p.total))
        found = _loaded(await client.status(), wanted)
    assert found is not None
    return found


def _loaded(status: StatusReply, name: str) -> ModelStatus | None:
    return next((model for model in status.models if name in (model.name, model.path)), None)


async def _warm_up(generator: LoadGenerator, plan: Iterator[Planned], settings: Settings, progress: Progress) -> None:
    """Let the daemon have seen requests of these lengths, with short outputs, before anything is measured."""
    wanted = [replace(each, output=min(each.output, WARMUP_OUTPUT)) for each in islice(plan, settings.warmup)]
    places = max((load.concurrency or 2 for load in settings.loads), default=1)
    await generator.closed_loop(wanted, places, progress=lambda done: progress("warm-up", done, len(wanted)))


async def _send(
    generator: LoadGenerator, load: Load, plan: Iterator[Planned], settings: Settings, progress: Progress
) -> list[Outcome]:
    """Run one load to the end of its requests or time, and of all answers."""
    until = math.inf if settings.duration is None else settings.duration
    chosen = islice(plan, settings.requests) if settings.duration is None else plan
    total = settings.requests if settings.duration is None else 0

    def tell(done: int) -> None:
        progress(str(load), done, total)

    if load.rate is None:
        return await generator.closed_loop(chosen, load.concurrency or 1, until=until, progress=tell)
    due = takewhile(lambda when: when < until, arrivals(load.rate, settings.seed))
    return await generator.open_loop(zip(due, chosen, strict=False), progress=tell)


async def _context(client: AsyncClient, model: ModelStatus) -> int | None:
    """Return the most tokens a sequence can have: the context, or a KV pool that holds less."""
    context = next((info.context for info in await client.models() if info.name == model.name), None)
    block = model.shape.get("block_size")
    pool = model.kv_blocks_total * block if model.kv_blocks_total and block else None
    return min((limit for limit in (context, pool) if limit), default=None)


def _environment(model: ModelStatus, context: int | None) -> Environment:
    return Environment(
        inferd=inferd.__version__,
        machine=f"{platform.machine()}, {_processor()}",
        cpus=len(os.sched_getaffinity(0)),
        model=model.name,
        device=model.device,
        dtype=model.dtype,
        plugins=model.plugins,
        exactness=model.exactness,
        context=context,
    )


def _processor() -> str:
    """Name of the processor as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
