"""The best this device does: copying, and multiplying random bf16 and fp8 matrices."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.bench import Bench


def run(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {"copy_bytes_s": copy_rate(bench), "bf16_flop_s": matrix_rate(bench)}
    if not bench.dry and torch.cuda.get_device_capability() >= (8, 9):
        found["fp8_flop_s"] = fp8_rate(bench)
    found["rows"] = [{"case": name, "value": value} for name, value in found.items()]
    return found


def copy_rate(bench: Bench) -> float:
    """Bytes read and written a second."""
    size = bench.size(2 << 30, 1 << 20)
    source, target = (torch.empty(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
    return 2 * size / bench.seconds_of(lambda: target.copy_(source))


def matrix_rate(bench: Bench, n: int = 8192) -> float:
    n = bench.size(n, 64)
    a, b = bench.random(n, n), bench.random(n, n)
    return 2 * n**3 / bench.seconds_of(lambda: a @ b)


def fp8_rate(bench: Bench, n: int = 8192) -> float:
    a, b = (bench.random(n, n).to(torch.float8_e4m3fn) for _ in range(2))
    rows, columns = (torch.ones(shape, device=bench.device) for shape in ((n, 1), (1, n)))

    def multiply() -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * n**3 / bench.seconds_of(multiply)
