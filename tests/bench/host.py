"""Host cost of a step: what the engine itself takes, apart from the model.

    python -m tests.bench.host [--steps N] [--json FILE]

A stub executor answers at once, so what is measured is propose, schedule, build, commit and report.
Every sequence decodes (one new token a step); blocks, hashes, stops and messages are real. The native rows run
the default model, whose weights drive everything of Python's out of the caches between two steps: what is
measured there is the whole step, its report packed, without the one call into the compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import unittest.mock
from pathlib import Path
from typing import Any

from inferd.config.layers import load_config
from inferd.config.paths import RuntimePaths
from inferd.engine.batch import Batch, RowOutput, StepOutput
from inferd.engine.builder import BatchBuilder
from inferd.engine.engine import Engine
from inferd.engine.executor import Executor
from inferd.engine.scheduler import Scheduler
from inferd.engine.shape import EngineShape
from inferd.link import Submit, pack
from inferd.load.errors import LoadError
from inferd.load.store import Store
from inferd.plugin.contracts import DraftModel
from inferd.plugin.types import KVGroupSize
from inferd_client.protocol import SamplingParams
from inferd_kernels.cpu.library import load as load_library
from inferd_kernels.cpu.library import why_missing
from inferd_plugins.draft.ngram import NgramDraft
from inferd_plugins.draft.none import NoDraft
from inferd_plugins.kv.paged import PagedKV
from tests.bench.harness import Side
from tests.bench.harness import load as load_model

BATCHES = (1, 8, 64, 256)
PROMPT = 64
BLOCK = 16


class StubExecutor(Executor):
    """Samples a token that depends on the position; accepts every draft."""

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self.busy_s = 0.0
        """Time spent in here, to be left out."""

    def submit(self, batch: Batch) -> None:
        self._batch = batch

    def collect(self) -> StepOutput:
        start = time.perf_counter()
        batch = self._batch
        assert batch is not None
        ends = batch.context_lens[batch.sampling_seqs].tolist()
        drafts = batch.draft_lens[batch.sampling_seqs].tolist()
        rows = [RowOutput([100 + (end + i) % 37 for i in range(k + 1)]) for end, k in zip(ends, drafts, strict=True)]
        self.busy_s += time.perf_counter() - start
        return StepOutput(rows, {}, 0.0)


def engine_of(batch: int, steps: int, drafter: DraftModel, max_draft: int) -> tuple[Engine, StubExecutor]:
    context = PROMPT + steps * (max_draft + 1) + 64
    blocks = batch * (-(-context // BLOCK) + 1)
    shape = EngineShape(
        max_context=context,
        max_sequences=batch,
        token_budget=max(512, batch * (max_draft + 1)),
        chunk=256,
        block_size=BLOCK,
        num_blocks=blocks,
        max_draft=max_draft,
    )
    kv = PagedKV()
    kv.bind([KVGroupSize(blocks, None)], BLOCK, prefix_cache=True)
    executor = StubExecutor()
    scheduler = Scheduler(shape, kv, clock=time.monotonic)
    return Engine(scheduler, executor, drafter, BatchBuilder(shape, 1), clock=time.monotonic), executor


def measure(batch: int, steps: int, *, drafter: DraftModel | None = None, max_draft: int = 0) -> dict[str, float]:
    """Return milliseconds a step: median, 99th percentile, and of packing the report."""
    engine, executor = engine_of(batch, steps + 80, drafter or NoDraft(), max_draft)
    for i in range(batch):
        prompt = [(i * 7 + j) % 1000 for j in range(PROMPT)]
        sampling = SamplingParams(max_tokens=engine.scheduler.shape.max_context - PROMPT, seed=i)
        engine.submit(Submit(key=f"r{i}", client=f"c{i % 4}", prompt=prompt, sampling=sampling, eos_ids=(1, 2)))
    while len(engine.scheduler.running.decoding) < batch:
        engine.step()
    times, packs = [], []
    for _ in range(steps):
        executor.busy_s = 0.0
        start = time.perf_counter()
        report = engine.step()
        middle = time.perf_counter()
        pack(report)
        packs.append((time.perf_counter() - middle) * 1e3)
        times.append((middle - start - executor.busy_s) * 1e3)
    times.sort()
    return {
        "batch": batch,
        "median_ms": round(statistics.median(times), 4),
        "p99_ms": round(times[int(len(times) * 0.99)], 4),
        "pack_ms": round(statistics.median(packs), 4),
        "us_per_sequence": round(statistics.median(times) * 1e3 / batch, 2),
    }


def measure_native(path: str, batch: int, steps: int, sampling: SamplingParams) -> dict[str, float]:
    """Return milliseconds a step of the real model: the whole, and Python's share of it."""
    loaded = load_model(
        path, Side("native", {"max_context": PROMPT + steps + 64, "max_sequences": batch, "multi_step_ms": 0})
    )
    engine, library = loaded.engine, load_library()
    for i in range(batch):
        prompt = [(i * 7 + j) % 1000 for j in range(PROMPT)]
        engine.submit(Submit(key=f"r{i}", client=f"c{i % 4}", prompt=prompt, sampling=sampling, eos_ids=()))
    native, run = [0.0], library.run

    def timed(program: Any, count: int, **how: int) -> None:
        start = time.perf_counter()
        run(program, count, **how)
        native[0] += time.perf_counter() - start

    while len(engine.scheduler.running.decoding) < batch:
        engine.step()
    whole, host = [], []
    with unittest.mock.patch.object(library, "run", timed):
        for _ in range(steps):
            native[0] = 0.0
            start = time.perf_counter()
            pack(engine.step())
            elapsed = time.perf_counter() - start
            whole.append(elapsed * 1e3)
            host.append((elapsed - native[0]) * 1e3)
    engine.close()
    return {"batch": batch, "step_ms": round(statistics.median(whole), 3), "host_ms": round(statistics.median(host), 3)}


def native_rows(steps: int) -> dict[str, list[dict[str, float]]]:
    """Measure the default model where it is in the store and the kernels are there."""
    if why_missing():
        return {}
    try:
        path = str(Store(RuntimePaths.of(load_config().config).models).resolve("smollm2-135m"))
    except LoadError:
        return {}
    kinds = {
        "greedy": SamplingParams(temperature=0, max_tokens=steps + 64, ignore_eos=True),
        "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=steps + 64, ignore_eos=True),
    }
    return {name: [measure_native(path, batch, steps, kind) for batch in (1, 32)] for name, kind in kinds.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    results = {
        "plain": [measure(batch, options.steps) for batch in BATCHES],
        "ngram k=4": [measure(batch, options.steps // 4, drafter=NgramDraft(), max_draft=4) for batch in BATCHES],
    }
    for name, rows in results.items():
        print(f"{name:10}  batch   median ms   p99 ms   pack ms   us/sequence")
        for row in rows:
            print(
                f"{'':10}  {row['batch']:5}   {row['median_ms']:9.3f}   {row['p99_ms']:6.3f}   "
                f"{row['pack_ms']:7.3f}   {row['us_per_sequence']:11.2f}"
            )
    native = native_rows(options.steps // 4)
    for name, rows in native.items():
        print(f"native, {name:10}  batch   step ms   host ms")
        for row in rows:
            print(f"{'':18}  {row['batch']:5}   {row['step_ms']:7.2f}   {row['host_ms']:7.3f}")
    text = json.dumps(results | {f"native, {name}": rows for name, rows in native.items()})
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
