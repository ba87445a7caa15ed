"""The default model: 64 greedy ids of several prompts on the GPU against the CPU engine in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferd.config.schema import Config, Engine, Plugins
from inferd.engine.build import build_engine
from inferd.engine.offline import Result
from inferd.engine.offline import run as run_requests
from inferd.engine.settings import WorkerSettings
from inferd.link import Submit
from inferd.load.vocab import open_vocabulary
from inferd_client.protocol import SamplingParams
from tests.gpu.bench import Bench
from tests.gpu.goals import check, failure, row
from tests.gpu.model_file import installed, joined

PACKED = Path("tests/gpu/packed")
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who",
    "Water boils at a lower temperature on a mountain because",
    "def fibonacci(n):\n    ",
    "The first five prime numbers are",
    "A recipe for bread: take flour, water, salt and",
)
ALTERNATIVES = 20
NEAR = {"fp32": 0.05, "bf16": 0.5}
"""How much less likely, in nats, the other token may be where outputs part. In float32 what differs is the order of
summation; in bfloat16 every product is rounded as well."""


class Setting(NamedTuple):
    name: str
    dtype: str
    engine: dict[str, Any]
    plugins: dict[str, str]


SETTINGS = (
    Setting("float32, graphs", "fp32", {}, {}),
    Setting("float32, eager", "fp32", {"graphs": False}, {}),
    Setting("float32, drafts", "fp32", {}, {"draft": "ngram"}),
    Setting("bfloat16, graphs", "bf16", {}, {}),
    Setting("bfloat16, int8 KV", "bf16", {"kv_format": "int8"}, {}),
)


def run(bench: Bench) -> dict[str, Any]:
    path = joined(PACKED, bench.work) if (PACKED / "second/model.part").exists() else installed()
    print(f"{path}, {path.stat().st_size} bytes", flush=True)
    vocabulary = open_vocabulary(path)
    prompts = [vocabulary.encode(text, add_bos=True) for text in PROMPTS[: bench.size(99, 2)]]
    count = bench.size(64, 8)
    plain = Setting("CPU", "fp32", {"linear": "torch", "device": "cpu"}, {"attention": "torch"})
    want: list[Result] = []
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS[: bench.size(99, 1)]:
        if not bench.mine():
            continue
        if bench.time_left < 0:
            rows.append(check(setting.name, False, "not run: out of time"))
            continue
        if not want:
            want = answers(path, prompts, count, plain, logprobs=ALTERNATIVES)
            print("\n".join(vocabulary.tokenizer.decode(result.ids) for result in want), flush=True)
        try:
            device = {"device": bench.device, **({"linear": "native"} if bench.dry else {})}
            plugins = {} if bench.dry else {"attention": "triton"}
            got = answers(path, prompts, count, setting._replace(
                engine=setting.engine | device, plugins=setting.plugins | plugins
            ))  # fmt: skip
        except Exception as error:
            rows.append(failure(setting.name, error))
            continue
        rows += compared(setting, want, got, NEAR["bf16" if bench.dry else setting.dtype])
    return {"model": path.name, "rows": rows}


def answers(
    path: Path, prompts: list[list[int]], count: int, setting: Setting, *, logprobs: int | None = None
) -> list[Result]:
    """Return the greedy results of all prompts, run together."""
    sizes = {"max_context": 512, "max_sequences": len(prompts), "kv_blocks": 32 * len(prompts), "dtype": setting.dtype}
    config = Config(
        engine=msgspec.convert(sizes | setting.engine, Engine), plugins=msgspec.convert(setting.plugins, Plugins)
    )
    engine, _card = build_engine(WorkerSettings(name="real", path=str(path.absolute()), config=config))
    sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=logprobs)
    try:
        results = run_requests(
            engine, [Submit(key=f"{i}", client="c", prompt=ids, sampling=sampling) for i, ids in enumerate(prompts)]
        )
    finally:
        engine.close()
    found = [results[f"{i}", 0] for i in range(len(prompts))]
    for result in found:
        if result.error is not None or len(result.ids) != count:
            raise RuntimeError(f"{len(result.ids)} of {count} ids: {result.error}")
    return found


def compared(setting: Setting, want: list[Result], got: list[Result], near: float) -> list[dict[str, Any]]:
    """Where outputs part, the CPU must have found both tokens nearly as likely; after that they are incomparable."""
    rows: list[dict[str, Any]] = []
    whole = same = 0
    for index, (a, b) in enumerate(zip(want, got, strict=True)):
        at = next((i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=True)) if x != y), len(a.ids))
        whole, same = whole + (at == len(a.ids)), same + at
        if at < len(a.ids):
            likely = dict(a.logprobs[at].top)
            gap = likely[a.ids[at]] - likely.get(b.ids[at], float("-inf"))
            text = f"token {at}: {b.ids[at]} in place of {a.ids[at]}, {gap:.4f} nat less likely"
            rows.append(check(f"{setting.name}, prompt {index}", gap <= near, text))
        else:
            rows.append(check(f"{setting.name}, prompt {index}", True, f"{at} ids equal"))
    rows.append(row(f"SmolLM2, {setting.name}: prompts with all {len(want[0].ids)} ids equal", whole / len(want), "1"))
    rows.append(row(f"SmolLM2, {setting.name}: ids equal before the first other", same / len(want), "ids"))
    return rows
