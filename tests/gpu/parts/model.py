"""Whole models with random weights: throughput at 256 sequences, latency at one, prefill, fp8 against bf16, int8 KV."""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from inferd.engine.engine import Engine
from inferd.engine.offline import run as run_requests
from inferd.link import Submit
from inferd.model import kv_groups
from inferd_client.protocol import SamplingParams
from inferd_plugins.attention.triton import TritonAttention
from tests.gpu.bench import Bench
from tests.gpu.parts.attention import row
from tests.gpu.parts.ceilings import copy_rate, matrix_rate
from tests.gpu.random_model import LLAMA3_8B, QWEN3_0_6B, TINY, Size, engine_of, random_decoder


def run(bench: Bench) -> dict[str, Any]:
    copies, flops = copy_rate(bench), matrix_rate(bench)
    rows: list[dict[str, Any]] = []
    for measure in (small_model, large_model):
        if bench.time_left > 20:
            try:
                rows += measure(bench, copies, flops)
            except Exception as error:
                rows.append({"case": measure.__name__, "value": f"{type(error).__name__}: {error}"[:300], "ok": False})
            if not bench.dry:
                torch.cuda.empty_cache()
    return {"copy_bytes_s": copies, "bf16_flop_s": flops, "rows": rows}


def requests(count: int, vocab: int, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0) -> list[Submit]:
    """Prompts and outputs of uniform random length, as nano-vllm's bench draws them."""
    rng = random.Random(seed)
    return [
        Submit(
            key=f"{i}",
            client="c",
            prompt=[rng.randrange(vocab) for _ in range(rng.randint(*prompt))],
            sampling=SamplingParams(temperature=0.6, seed=i, max_tokens=rng.randint(*output)),
        )
        for i in range(count)
    ]


def timed(engine: Engine, asked: list[Submit]) -> tuple[float, int]:
    """Return seconds and output tokens."""
    start = time.perf_counter()
    results = run_requests(engine, asked)
    return time.perf_counter() - start, sum(len(result.ids) for result in results.values())


def small_model(bench: Bench, copies: float, flops: float) -> list[dict[str, Any]]:
    size: Size = TINY if bench.dry else QWEN3_0_6B
    context = bench.size(4096, 64)
    decoder = random_decoder(size, bench.device, bench.dtype, context)
    rows: list[dict[str, Any]] = []
    sizes: dict[str, Any] = {"context": context, "kv_format": "fp32" if bench.dry else "bf16"}
    engine = engine_of(
        decoder, bench.device, sequences=bench.size(256, 2), blocks=bench.size(20000, 16), budget=bench.size(8192, 64),
        **sizes,
    )  # fmt: skip
    draws = ((100, 1024), (100, 1024)) if not bench.dry else ((3, 9), (2, 3))
    count = bench.size(256, 2)
    timed(engine, requests(count, size.vocab, draws[0], (bench.size(8, 2), bench.size(16, 3)), seed=1))  # warm up
    seconds, tokens = timed(engine, requests(count, size.vocab, *draws))
    rows.append(row("0.6B, 256 sequences (nano-vllm's bench)", tokens / seconds, "tokens/s", ">= 21000, then 25000"))
    del engine
    latency: dict[bool, float] = {}
    for graphs in (True, False):
        engine = engine_of(
            decoder, bench.device, sequences=1, blocks=bench.size(256, 8), budget=bench.size(4096, 64), graphs=graphs,
            **sizes,
        )  # fmt: skip
        short = requests(1, size.vocab, (4, 4), (bench.size(256, 3),) * 2)
        timed(engine, short)
        seconds, tokens = timed(engine, short)
        latency[graphs] = tokens / seconds
        del engine
    rows.append(row("0.6B, one sequence", latency[True], "tokens/s", ">= 600"))
    rows.append(row("0.6B, one sequence, graphs over eager", latency[True] / latency[False], "times", ">= 2.5"))
    rows.append(row("0.6B, one sequence", decoder.weight_bytes * latency[True] / copies, "copy bandwidth"))
    return rows


def large_model(bench: Bench, copies: float, flops: float) -> list[dict[str, Any]]:
    size: Size = TINY if bench.dry else LLAMA3_8B
    context = bench.size(8192, 64)
    measured: dict[bool, dict[str, float]] = {}
    rows: list[dict[str, Any]] = []
    for fp8 in (False, True):
        if bench.time_left < 20 and not bench.dry:
            break
        decoder = random_decoder(size, bench.device, bench.dtype, context, fp8=fp8)
        name = "8B fp8" if fp8 else "8B bf16"
        measured[fp8] = found = {"bytes": float(decoder.weight_bytes)}
        sequences = bench.size(64, 2)
        engine = engine_of(
            decoder, bench.device, sequences=sequences, context=context, blocks=bench.size(8192, 16),
            budget=bench.size(8192, 64), kv_format="fp32" if bench.dry else "bf16",
        )  # fmt: skip
        for label, count, prompt, output in (
            ("one sequence", 1, 8, 128),
            ("64 sequences", sequences, 64, 128),
            ("prefill of 8000", 1, 8000, 1),
        ):
            asked = requests(count, size.vocab, (bench.size(prompt, 5),) * 2, (bench.size(output, 2),) * 2)
            timed(engine, asked)
            seconds, tokens = timed(engine, asked)
            found[label] = (bench.size(prompt, 5) if output == 1 else tokens) / seconds
            rows.append(row(f"{name}, {label}", found[label], "tokens/s"))
        share = found["bytes"] * found["one sequence"] / copies
        rows.append(row(f"{name}, one sequence", share, "copy bandwidth"))
        work = 2 * (found["bytes"] / (1 if fp8 else 2)) * found["prefill of 8000"]
        rows.append(row(f"{name}, prefill of 8000, without attention", work / flops, "bf16 matrix rate"))
        del engine, decoder
        if not bench.dry:
            torch.cuda.empty_cache()
    if len(measured) == 2:
        bf16, fp8 = measured[False], measured[True]
        rows.append(row("8B weights, fp8 over bf16", fp8["bytes"] / bf16["bytes"], "times", "<= 0.53 (layers)"))
        rows += [
            row(f"8B {label}, fp8 over bf16", fp8[label] / bf16[label], "times", ">= 1.5")
            for label in ("one sequence", "64 sequences", "prefill of 8000")
        ]
    rows.append(row("4k sequences in the same memory, int8 over bf16 KV", kv_ratio(size), "times", ">= 1.8"))
    return rows


def kv_ratio(size: Size) -> float:
    from tests.gpu.random_model import spec_of

    (group,) = kv_groups(spec_of(size))
    wide, narrow = (TritonAttention().kv_layout(group, kind, 16).bytes_per_block for kind in ("bf16", "int8"))
    return wide / narrow
