"""What each lever is worth on this machine: `python -m tests.bench.levers [--only NAME] [--repeats N]`.

Every lever runs on and off, interleaved, on one trace, in one process. The table gives medians, the
ratio of the medians with a bootstrap interval over the paired runs, and what the lever was expected
to do; a lever that did nothing or harm is marked so.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from inferd.config.layers import load_config
from inferd.config.paths import RuntimePaths
from inferd.load.store import Store
from inferd_kernels.cpu.library import why_missing
from tests.bench.harness import Sample, Side, Trace, compare, interval
from tests.bench.report import Row, print_table
from tests.bench.traces import conversations, grounded, shared_prefix, short_answers, uniform

Metric = Callable[[Sample], float | None]

METRICS: dict[str, tuple[Metric, bool]] = {
    "tokens/s": (lambda s: s.tokens_per_s, True),
    "TTFT ms": (lambda s: s.ttft_ms, False),
    "TPOT ms": (lambda s: s.tpot_ms, False),
    "worst gap ms": (lambda s: s.itl_max_ms, False),
    "peak KV MiB": (lambda s: s.peak_kv_mib, False),
    "running": (lambda s: float(s.peak_running), True),
}
"""Name to (how to read it, whether higher is better)."""


@dataclass(frozen=True)
class Experiment:
    name: str
    on: Side
    off: Side
    trace: Trace
    metrics: tuple[str, ...]
    expect: str


def experiments(path: str) -> list[Experiment]:
    """Every lever with its baseline, its trace and what is expected of it."""
    small = {"max_context": 1024, "max_sequences": 16}
    one = {"max_context": 2560, "max_sequences": 1, "prefix_cache": False}
    levers = [
        Experiment(
            "paged KV",
            Side("paged", {**small, "kv_blocks": 128}),
            Side("contiguous", {**small, "kv_blocks": 128}, {"kv": "contiguous"}),
            partial(short_answers, count=32, output=64),
            ("running", "tokens/s", "TTFT ms", "peak KV MiB"),
            "more sequences fit one budget",
        ),
        Experiment(
            "GQA",
            Side("gqa", one),
            Side("expanded", {**one, "expand_gqa": True}),
            partial(uniform, count=1, prompt=1024, output=24),
            ("TPOT ms", "TTFT ms", "peak KV MiB"),
            "a third of the KV bytes (9 query heads share 3)",
        ),
        Experiment(
            "prefix cache",
            Side("cache", small),
            Side("no cache", {**small, "prefix_cache": False}),
            partial(shared_prefix, count=12, prefix=384, prompt=24, output=8),
            ("TTFT ms", "tokens/s"),
            "TTFT down where prompts share a head",
        ),
        Experiment(
            "prefix cache, nothing shared",
            Side("cache", small),
            Side("no cache", {**small, "prefix_cache": False}),
            partial(short_answers, count=24),
            ("TTFT ms", "tokens/s"),
            "costs nothing",
        ),
        Experiment(
            "torch attention (tiled)",
            Side("torch", one, {"attention": "torch"}),
            Side("reference", one, {"attention": "reference"}),
            partial(uniform, count=1, prompt=1536, output=8),
            ("TTFT ms", "TPOT ms"),
            "TTFT down: no score matrix",
        ),
        Experiment(
            "chunked prefill",
            Side("chunk 64", {**small, "chunk": 64, "token_budget": 128}),
            Side("whole prompt", {**small, "chunk": 1024, "token_budget": 1024, "step_ms": 0}),
            partial(uniform, count=6, prompt=640, output=32),
            ("worst gap ms", "TTFT ms", "tokens/s"),
            "shorter stalls of running answers, longer TTFT of the long prompt",
        ),
        Experiment(
            "n-gram speculation, grounded text",
            Side("ngram", {**one, "max_draft": 4}, {"draft": "ngram"}),
            Side("none", one),
            partial(grounded, path=path, output=96),
            ("TPOT ms", "tokens/s"),
            "TPOT down where the answer repeats the prompt",
        ),
        Experiment(
            "n-gram speculation, random prompt",
            Side("ngram", {**one, "max_draft": 4}, {"draft": "ngram"}),
            Side("none", one),
            partial(uniform, count=1, prompt=128, output=64),
            ("TPOT ms", "tokens/s"),
            "nothing, unless the answer repeats itself",
        ),
        Experiment(
            "layers over two processes",
            Side("layers", one, {"parallel": "layers"}),
            Side("single", one),
            partial(uniform, count=1, prompt=64, output=32),
            ("TPOT ms", "TTFT ms"),
            "harm: hand-over between processes; only capacity is gained",
        ),
    ]
    batching = [
        Experiment(
            f"continuous batching, {name}",
            Side("continuous", small),
            Side("static", {**small, "batching": "static"}),
            trace,
            ("tokens/s", "TTFT ms", "TPOT ms", "peak KV MiB"),
            "tokens/s up, most where lengths have a long tail: finished sequences leave at once",
        )
        for name, trace in (
            ("conversations", partial(conversations, count=128)),
            ("short answers", partial(short_answers, count=40)),
        )
    ]
    formats = [
        Experiment(
            f"{name} KV",
            Side(name, {**one, "kv_format": name}),
            Side("fp32", {**one, "kv_format": "fp32"}),
            partial(uniform, count=1, prompt=2048, output=48),
            ("TPOT ms", "TTFT ms", "peak KV MiB"),
            "fewer bytes to read and to keep",
        )
        for name in ("bf16", "int8")
    ]
    cached = [
        Experiment(
            f"KV cache at {context}",
            Side("cache", one),
            Side("recompute", one, {"kv": "recompute"}),
            partial(uniform, count=1, prompt=context, output=4),
            ("TPOT ms", "tokens/s"),
            "TPOT down, more with length",
        )
        for context in (64, 512, 2048)
    ]
    batches = [
        Experiment(
            f"batch {size}",
            Side(f"batch {size}", {"max_context": 512, "max_sequences": size}),
            Side("batch 1", {"max_context": 512, "max_sequences": 1}),
            partial(uniform, count=size, prompt=32, output=24),
            ("tokens/s", "TPOT ms"),
            "cost per token falls: weights are read once a step",
        )
        for size in (2, 4, 8, 16, 32)
    ]
    return [*_native(small, one), *batching, *levers[:1], *cached, *levers[1:], *formats, *batches]


def _native(small: dict[str, Any], one: dict[str, Any]) -> list[Experiment]:
    """The compiled CPU kernels against torch, where they are built."""
    if why_missing():
        return []
    pins = {"attention": "cpu"}, {"attention": "torch"}
    return [
        Experiment(
            f"native CPU kernels, {name}",
            Side("native", {**sizes, "linear": "native"}, pins[0]),
            Side("torch", {**sizes, "linear": "torch"}, pins[1]),
            trace,
            ("TPOT ms", "TTFT ms", "tokens/s"),
            "weights stay packed and a step is one call",
        )
        for name, sizes, trace in (
            ("one request", one, partial(uniform, count=1, prompt=128, output=48)),
            ("40 requests", small, partial(short_answers, count=40)),
        )
    ]


def rows_of(experiment: Experiment, samples: dict[str, list[Sample]]) -> list[Row]:
    on, off = samples[experiment.on.name], samples[experiment.off.name]
    rows: list[Row] = []
    for name in experiment.metrics:
        read, higher_is_better = METRICS[name]
        pairs = [(a, b) for a, b in zip(map(read, on), map(read, off), strict=True) if a is not None and b is not None]
        if not pairs:
            continue
        rows.append(Row.of(experiment.name, name, pairs, interval, higher_is_better, experiment))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="name in the store, GGUF file or folder")
    parser.add_argument("--only", default="", help="run experiments whose name contains this")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0 = all cores")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads or torch.get_num_threads())
    path = str(Store(RuntimePaths.of(load_config().config).models).resolve(args.model))
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    rows: list[Row] = []
    for experiment in experiments(path):
        if args.only in experiment.name:
            started = time.monotonic()
            samples = compare(path, [experiment.on, experiment.off], experiment.trace, args.repeats)
            _check_path(experiment, samples)
            rows += rows_of(experiment, samples)
            print(f"{experiment.name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            if args.json:
                document: dict[str, Any] = {"machine": machine, "model": Path(path).name, "repeats": args.repeats}
                args.json.write_text(json.dumps(document | {"rows": [asdict(row) for row in rows]}, indent=1))
    print_table(rows, f"{Path(path).name} on {machine}, {args.repeats} interleaved runs a side")


def _check_path(experiment: Experiment, samples: dict[str, list[Sample]]) -> None:
    """A lever that never came into play would be a comparison of nothing."""
    on = samples[experiment.on.name]
    if experiment.name == "prefix cache" and not all(s.hits for s in on):
        raise RuntimeError("the prefix cache was never hit")
    if experiment.name == "n-gram speculation, grounded text" and not all(s.accepted for s in on):
        raise RuntimeError("no draft was ever accepted")


if __name__ == "__main__":
    main()
