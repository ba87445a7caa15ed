"""Build engines of one model with different levers, and run them against each other, interleaved."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from inferd.config.schema import Config, Engine, Plugins
from inferd.engine.build import build_engine
from inferd.engine.engine import Engine as RunningEngine
from inferd.engine.offline import Results, run
from inferd.engine.settings import WorkerSettings
from inferd.link import ModelCard, StepReport, Submit

Trace = Callable[[int, int], list[Submit]]
"""(seed, vocabulary size) to requests; each turn has a seed of its own, the same on every side."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name and what it sets."""

    name: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    plugins: Mapping[str, Any] = field(default_factory=dict)
    plugin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One run of one side."""

    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float | None
    itl_max_ms: float
    peak_kv_mib: float
    peak_running: int
    hits: int
    preemptions: int
    accepted: int


@dataclass(frozen=True)
class Loaded:
    side: Side
    engine: RunningEngine
    card: ModelCard

    @property
    def block_bytes(self) -> int:
        return self.card.kv_bytes // self.card.shape["num_blocks"]


def load(path: str, side: Side) -> Loaded:
    """Build the engine of one side in this process."""
    config = Config(
        engine=msgspec.convert(dict(side.engine), Engine),
        plugins=msgspec.convert(dict(side.plugins), Plugins),
        plugin={kind: {k: dict(v) for k, v in tables.items()} for kind, tables in side.plugin.items()},
    )
    engine, card = build_engine(WorkerSettings(name="bench", path=path, config=config))
    return Loaded(side, engine, card)


def measure(loaded: Loaded, requests: Sequence[Submit], arrivals: Sequence[float] | None = None) -> Sample:
    """Run one trace and reduce it to one sample."""
    watch = _Watch()
    started = time.monotonic()
    before = loaded.engine.scheduler.kv.stats().hits
    results = run(loaded.engine, requests, arrivals=arrivals, on_step=watch)
    elapsed = time.monotonic() - started
    failed = [r.error for r in results.values() if r.error]
    if failed:
        raise RuntimeError(f"{loaded.side.name}: {failed[0]}")
    tpots = [r.tpot for r in results.values() if r.tpot is not None]
    return Sample(
        tokens_per_s=sum(len(r.ids) for r in results.values()) / elapsed,
        ttft_ms=1e3 * statistics.median(r.ttft for r in results.values()),
        tpot_ms=1e3 * statistics.median(tpots) if tpots else None,
        itl_max_ms=1e3 * _worst_gap(results),
        peak_kv_mib=watch.peak_blocks * loaded.block_bytes / (1 << 20),
        peak_running=watch.peak_running,
        hits=loaded.engine.scheduler.kv.stats().hits - before,
        preemptions=sum(r.preemptions for r in results.values()),
        accepted=sum(r.accepted for r in results.values()),
    )


class _Watch:
    def __init__(self) -> None:
        self.peak_blocks = self.peak_running = 0

    def __call__(self, report: StepReport) -> None:
        stats = report.stats
        self.peak_blocks = max(self.peak_blocks, stats.kv_total - stats.kv_free)
        self.peak_running = max(self.peak_running, stats.running)


def _worst_gap(results: Results) -> float:
    return max((b - a for r in results.values() for a, b in zip(r.times, r.times[1:], strict=False)), default=0.0)


def compare(
    path: str, sides: Sequence[Side], trace: Trace, repeats: int, *, arrivals: Sequence[float] | None = None
) -> dict[str, list[Sample]]:
    """Run every side `repeats` times, in turn and in changing order, after one warm-up each."""
    engines = [load(path, side) for side in sides]
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for turn in range(repeats + 1):
        for loaded in engines if turn % 2 else engines[::-1]:
            sample = measure(loaded, trace(turn, loaded.card.vocab_size), arrivals)
            if turn:
                samples[loaded.side.name].append(sample)
    for loaded in engines:
        loaded.engine.close()
    engines.clear()
    gc.collect()
    return samples


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 percent bootstrap interval of the median."""
    if len(values) < 2:
        return values[0], values[0]
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(np.asarray(values), (2000, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)
