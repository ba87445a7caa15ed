"""Packed matrix products beside cuBLAS in bf16 and torch's scaled fp8 product, at the sizes of an 8B model."""

from __future__ import annotations

from typing import Any

import torch

from inferd_kernels.triton.gate import quantize_rows
from inferd_kernels.triton.gemm_fp8 import gemm_fp8
from inferd_kernels.triton.gemm_w4 import Weight4, gemm_w4
from inferd_kernels.triton.gemm_w8 import Weight8, gemm_w8
from tests.gpu.bench import Bench
from tests.gpu.goals import at_least, failure, row

SHAPES = [(4096, 4096), (28672, 4096), (4096, 14336)]
"""N, K of the output projection, of gate and up, of down."""
W4 = {1: at_least(2.5), 16: at_least(2.2), 64: at_least(1.1)}
"""By rows, times bf16 through cuBLAS."""


def run(bench: Bench) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for n, k in SHAPES:
        n, k = bench.size(n, 64), bench.size(k, 128)
        for m in (1, 16, 64, 1024, 4096) if not bench.dry else (1, 70):
            if bench.mine() and bench.time_left > 0:
                try:
                    rows += products(bench, m, n, k)
                except Exception as error:
                    rows.append(failure(f"M{m} N{n} K{k}", error))
    return {"rows": rows}


def products(bench: Bench, m: int, n: int, k: int) -> list[dict[str, Any]]:
    """Speed-ups over bf16 of the same run."""
    x, dense = bench.random(m, k), bench.random(n, k)
    base = bench.seconds_of(lambda: x @ dense.t())
    group = bench.size(128, 32)
    half = 64 if group % 64 == 0 else 32
    codes = torch.randint(0, 256, (k // (2 * half), n, half), dtype=torch.uint8, device=bench.device)
    scales = torch.rand(k // group, n, device=bench.device).half()
    four = Weight4(codes, scales, None, (n, k), group, 8)
    eight = Weight8(torch.randint(-127, 128, (n, k), device=bench.device).to(torch.int8), _ones(bench, n), None, k, 0)
    narrow = Weight8(bench.random(n, k).to(torch.float8_e4m3fn), _ones(bench, n), None, k, 0)
    rows8, rows_fp8 = quantize_rows(x, torch.int8), quantize_rows(x, torch.float8_e4m3fn)
    times = {
        "w4": bench.seconds_of(lambda: gemm_w4(x, four)),
        "w8": bench.seconds_of(lambda: gemm_w8(x, eight)),
        "w8 of int8 rows": bench.seconds_of(lambda: gemm_w8(rows8, eight)),
        "fp8": bench.seconds_of(lambda: gemm_fp8(x, narrow)),
        "fp8 of fp8 rows": bench.seconds_of(lambda: gemm_fp8(rows_fp8, narrow)),
        "fp8 of fp8 rows, Triton": bench.seconds_of(lambda: gemm_w8(rows_fp8, narrow, kernel="gemm_fp8_rows")),
    }
    label = f"M{m} N{n} K{k}"
    rows = [
        row(f"{label} {name}", base / time, "times bf16", W4.get(m) if name == "w4" else None)
        for name, time in times.items()
    ]
    rows.append(row(f"{label} bf16", base * 1e6, "us"))
    if m >= 1024 and not bench.dry:
        a = x.to(torch.float8_e4m3fn)
        ones = torch.ones(m, 1, device=bench.device)

        def scaled() -> torch.Tensor:
            return torch._scaled_mm(
                a, narrow.codes.t(), ones, narrow.scales, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        peer = bench.seconds_of(scaled)
        goal = at_least(0.90)
        rows.append(row(f"{label} fp8 of fp8 rows", peer / times["fp8 of fp8 rows"], "_scaled_mm's rate", goal))
        rows.append(row(f"{label} fp8 with quantizing", peer / times["fp8"], "_scaled_mm's rate"))
        triton = peer / times["fp8 of fp8 rows, Triton"]
        rows.append(row(f"{label} fp8 of fp8 rows, Triton", triton, "_scaled_mm's rate"))
    return rows


def _ones(bench: Bench, n: int) -> torch.Tensor:
    return torch.ones(1, n, device=bench.device) * 0.01
