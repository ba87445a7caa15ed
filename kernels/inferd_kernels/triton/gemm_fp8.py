"""Rows times fp8 (e4m3) weights: few rows by `gemm_w8`, many by the fp8 matrix units.

Few rows are bound by reading the weight, which is half of a 16-bit one either way, so float rows stay exact. Many rows
are bound by arithmetic: they are quantized one by one, where a norm or gate did not do so before, and multiplied by
torch's row-wise scaled product, or, for weights with a scale a group, by `gemm_w8`.
"""

from __future__ import annotations

import torch

from inferd_kernels.triton.gate import quantize_rows
from inferd_kernels.triton.gemm_w8 import Weight8, gemm_w8
from inferd_kernels.triton.norm import QuantizedRows
from inferd_kernels.triton.split_k import Epilogue
from inferd_kernels.triton.tiling import Tiles

FEW_ROWS = 64
"""Most rows that are bound by reading the weight."""


def gemm_fp8(
    x: torch.Tensor | QuantizedRows,
    weight: Weight8,
    epilogue: Epilogue = Epilogue(),
    *,
    out: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Return x [M, K] times the weight, [M, N] in the dtype of x."""
    if x.shape[0] <= FEW_ROWS:
        return gemm_w8(x, weight, epilogue, out=out, tiles=tiles, kernel="gemm_fp8")
    rows = x if isinstance(x, QuantizedRows) else quantize_rows(x, weight.codes.dtype)
    unfit = weight.scales.shape[0] > 1 or any(size % 16 for size in weight.shape)
    if unfit or x.device.type != "cuda" or x.dtype != torch.bfloat16:
        return gemm_w8(rows, weight, epilogue, out=out, tiles=tiles, kernel="gemm_fp8_rows")
    y = torch._scaled_mm(
        rows.codes,
        weight.codes.t(),
        scale_a=rows.scales.unsqueeze(1),
        scale_b=weight.scales.float(),
        bias=epilogue.bias,
        out_dtype=x.dtype,
        use_fast_accum=True,
    )
    if epilogue.residual is not None:
        y = y.add_(epilogue.residual)
    return y if out is None else out.copy_(y)
