"""Attention at model sizes, beside torch's own kernels and the ceilings of this run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from inferd_kernels.triton.attn_prefill import Scores, attn_prefill
from tests.gpu.bench import Bench
from tests.gpu.parts.cache import decoded, paged
from tests.gpu.parts.ceilings import copy_rate, matrix_rate

HEADS, KV_HEADS = 32, 8
PREFILL = [(128, 8192, "0.52, then 0.62"), (64, 8192, "0.42, then 0.50"), (128, 2048, "")]
"""Width, length, goal as a share of the bf16 matrix rate."""
DECODE = [
    (8, 16384, "0.85, then 0.93"),
    (32, 4096, "0.85, then 0.93"),
    (8, 4096, "0.65, then 0.75"),
    (1, 32768, "0.60, then 0.72"),
    (1, 4096, ""),
    (1, 1024, ""),
]
"""Sequences, context, goal as a share of the copy bandwidth."""


def run(bench: Bench) -> dict[str, Any]:
    copies, flops = copy_rate(bench), matrix_rate(bench)
    rows: list[dict[str, Any]] = []
    for width, length, goal in PREFILL:
        if bench.time_left > 0:
            rows += prefill(bench, width, bench.size(length, 32), flops, goal)
    for sequences, context, goal in DECODE:
        if bench.time_left > 0:
            rows += decode(bench, bench.size(sequences, 1), bench.size(context, 64), copies, goal)
    return {"copy_bytes_s": copies, "bf16_flop_s": flops, "rows": rows}


def prefill(bench: Bench, width: int, length: int, flops: float, goal: str) -> list[dict[str, Any]]:
    """Causal, one sequence: 2 products of length^2 / 2 scores."""
    kv, batch = paged(bench, [length], [length], kv_heads=KV_HEADS, width=width, page=16, dtype=bench.dtype)
    q = bench.random(length, HEADS, width)
    out = torch.empty_like(q)
    work = 2 * 2 * length * length / 2 * HEADS * width
    own = bench.seconds_of(lambda: attn_prefill(q, kv, batch, Scores(width**-0.5), out))
    slots = (batch.block_tables[0].long().unsqueeze(1) * 16 + torch.arange(16, device=q.device)).flatten()[:length]
    heads = [q.transpose(0, 1)[None]]
    heads += [plane.flatten(0, 1)[slots].transpose(0, 1)[None].contiguous() for plane in (kv.k, kv.v)]

    def peer() -> torch.Tensor:
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)

    case = f"prefill hd{width} {length}"
    rows = [row(case, work / own / flops, "bf16 matrix rate", goal)]
    for name, backend in _backends().items():
        try:
            with torch.nn.attention.sdpa_kernel(backend):
                rows.append(row(f"{case}: time of torch {name} over ours", bench.seconds_of(peer) / own, "times"))
        except RuntimeError as error:
            rows.append({"case": f"{case}: torch {name}", "value": str(error).splitlines()[0][:80]})
    return rows


def _backends() -> dict[str, Any]:
    kinds = torch.nn.attention.SDPBackend
    return {"flash": kinds.FLASH_ATTENTION, "cudnn": kinds.CUDNN_ATTENTION}


def decode(bench: Bench, sequences: int, context: int, copies: float, goal: str) -> list[dict[str, Any]]:
    """bf16, the 8-bit formats, and a verification of 8 rows, each as time; reading K and V once is the bound."""
    width = 128
    options: dict[str, Any] = {"kv_heads": KV_HEADS, "width": width, "page": 16, "dtype": bench.dtype}
    lens, contexts, scores = [1] * sequences, [context] * sequences, Scores(width**-0.5)
    kv, batch = paged(bench, lens, contexts, **options)
    q = bench.random(sequences, HEADS, width)
    own = bench.seconds_of(lambda: decoded(q, kv, batch, scores))
    size = 2 * sequences * context * KV_HEADS * width * kv.k.element_size()
    case = f"decode {sequences}x{context}"
    rows = [row(case, size / own / copies, "copy bandwidth", goal), row(f"{case} time", own * 1e6, "us")]
    wide = bench.random(sequences * 8, HEADS, width)
    kv8, batch8 = paged(bench, [8] * sequences, contexts, **options)
    verify = bench.seconds_of(lambda: decoded(wide, kv8, batch8, scores, rows=8))
    rows.append(row(f"{case} verify of 8 rows", verify / own, "of one row", "<= 1.25"))
    for kind in (torch.int8, torch.float8_e4m3fn):
        narrow, batch = paged(bench, lens, contexts, eight_bit=kind, **options)
        time = bench.seconds_of(lambda narrow=narrow, batch=batch: decoded(q, narrow, batch, scores))
        rows.append(row(f"{case} {str(kind).split('.')[1]} KV", time / own, "of bf16", "<= 0.65 from 16k"))
    return rows


def row(case: str, value: float, of: str, goal: str = "") -> dict[str, Any]:
    return {"case": case, "value": value, "of": of, "goal": goal}
