"""The engine on the GPU against the engine on the CPU: tiny float32 models, every lever, the same ids."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inferd.config.schema import Config, Engine, Plugins
from inferd.engine.build import build_engine
from inferd.engine.offline import run as run_requests
from inferd.engine.settings import WorkerSettings
from inferd.link import Submit
from inferd_client.protocol import SamplingParams
from tests.gpu.bench import Bench
from tests.gpu.goals import check, failure
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen2, tiny_qwen3

PROMPTS = [list(range(60, 99)), [7, 8, 9, 10, 7, 8, 9, 10, 7, 8], list(range(60, 80)), [5], list(range(100, 190))]
SAMPLINGS: dict[str, Any] = {
    "greedy": {"temperature": 0.0},
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.7, "presence_penalty": 0.5, "logit_bias": {9: 2.0}},
}
LEVERS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "graphs": ({}, {}),
    "eager": ({"graphs": False}, {}),
    "steps one by one": ({"overlap": "off"}, {}),
    "drafts": ({}, {"draft": "ngram"}),
    "chunks and preemption": ({"chunk": 16, "kv_blocks": 12}, {}),
    "no prefix cache": ({"prefix_cache": False}, {"kv": "contiguous"}),
    "block of 64": ({"block_size": 64, "kv_blocks": 16}, {}),
    "torch attention": ({}, {"attention": "torch"}),
}
"""Engine settings and plugins; ids must not depend on any of them."""
REFERENCE = {"attention": "reference"}
MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda folder: tiny_llama(folder, rope_theta=50.0),
    "qwen2": lambda folder: tiny_qwen2(folder, heads=6, kv_heads=3, head_dim=16),
    "qwen3": lambda folder: tiny_qwen3(folder, heads=4, kv_heads=1, head_dim=32),
    "q4": lambda folder: tiny_gguf(folder, quant="Q4_0", hidden=256, inner=256, heads=4, kv_heads=2),
}


def asked(bench: Bench) -> list[Submit]:
    """Return every prompt with every sampling; a few tokens of two prompts where the interpreter has to make them."""
    return [
        Submit(
            key=f"{name} {i}",
            client="c",
            prompt=prompt,
            sampling=SamplingParams(seed=7, max_tokens=bench.size(12, 3), **sampling),
        )
        for name, sampling in SAMPLINGS.items()
        for i, prompt in enumerate(PROMPTS[1:4:2] if bench.dry else PROMPTS)
    ]


def run(bench: Bench) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for model, write in list(MODELS.items())[: bench.size(99, 2)]:
            path, want = write(Path(name) / model), None
            for lever, (engine, plugins) in list(LEVERS.items())[: bench.size(99, 1)]:
                if bench.mine() and bench.time_left > 0:
                    want = want or answers(path, asked(bench), {"device": "cpu", "linear": "torch"}, REFERENCE)
                    rows.append(compared(f"{model}: {lever}", want, partial(gpu, bench, path, engine, plugins)))
            if model == "llama" and bench.mine():
                rows.append(int8(bench, path))
    return {"rows": rows}


def gpu(bench: Bench, path: Path, engine: dict[str, Any], plugins: dict[str, str]) -> dict[str, list[int]]:
    kernels = {"device": bench.device, "linear": "triton" if bench.dry else "auto"}
    return answers(path, asked(bench), kernels | engine, {"attention": "triton"} | plugins)


def compared(case: str, want: dict[str, list[int]], run: Callable[[], dict[str, list[int]]]) -> dict[str, Any]:
    print(case, flush=True)
    try:
        got = run()
    except Exception as error:
        traceback.print_exc()
        return failure(case, error)
    same = sum(got[key] == want[key] for key in want)
    return check(case, same == len(want), f"{same} of {len(want)} equal")


def int8(bench: Bench, path: Path) -> dict[str, Any]:
    """With int8 KV the ids must not depend on graphs either."""
    engine = {"kv_format": "int8"}
    want = gpu(bench, path, engine | {"graphs": False}, {})
    return compared("llama: int8 KV, graphs against eager", want, partial(gpu, bench, path, engine, {}))


def answers(
    path: Path, requests: list[Submit], engine: dict[str, Any], plugins: dict[str, str]
) -> dict[str, list[int]]:
    """Return the ids of every request, all in one run."""
    sizes = {"block_size": 16, "kv_blocks": 64, "max_context": 128, "max_sequences": 6, "chunk": 64, "threads": 1}
    config = Config(
        engine=msgspec.convert(sizes | {"dtype": "fp32"} | engine, Engine),
        plugins=msgspec.convert(plugins, Plugins),
    )
    built, _card = build_engine(WorkerSettings(name="tiny", path=str(path), config=config))
    results = run_requests(built, requests)
    built.close()
    return {key: result.ids for (key, _), result in results.items()}
