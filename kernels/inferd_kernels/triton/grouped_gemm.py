"""Rows times the weights of their experts, float, int8 or fp8: y[r] = f[r] x[r // top_k] W[e(r)]^T.

The weight tile is the first operand of the product, which the few rows of an expert fill far better.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.triton.moe_align import Blocks
from inferd_kernels.triton.tiling import Tiles


class ExpertWeights(NamedTuple):
    """Weights of all experts [E, N, K], float, int8 or fp8; the last two with a scale a row."""

    codes: torch.Tensor
    scales: torch.Tensor | None = None  # [E, N]

    def dense(self) -> torch.Tensor:
        """Return the weights [E, N, K] in float32."""
        return self.codes.float() if self.scales is None else self.codes.float() * self.scales.float().unsqueeze(-1)


@triton.jit
def store_rows(b_acc, p_factors, p_out, o_row, o_n, mask_m, mask_n, out_stride, FACTORS: tl.constexpr):
    """Store products [BLOCK_N, BLOCK_M] as rows of `p_out`, times their factors."""
    if FACTORS:
        b_acc *= tl.load(p_factors + o_row, mask=mask_m, other=0.0).to(tl.float32)[None, :]
    o_out = o_row.to(tl.int64)[None, :] * out_stride + o_n[:, None]
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=mask_n[:, None] & mask_m[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def grouped_gemm_kernel(
    p_x,
    p_codes,
    p_scales,
    p_factors,
    p_out,
    p_rows,
    p_owners,
    num_rows,
    num_columns,
    num_k,
    x_stride,
    out_stride,
    TOP_K: tl.constexpr,
    SCALED: tl.constexpr,
    FACTORS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_block = tl.program_id(1)
    i_expert = tl.load(p_owners + i_block).to(tl.int64)
    if i_expert < 0:
        return
    o_row = tl.load(p_rows + i_block * BLOCK_M + tl.arange(0, BLOCK_M))
    mask_m = o_row < num_rows
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = o_n < num_columns
    o_k = tl.arange(0, BLOCK_K)
    p_xs = p_x + (o_row // TOP_K).to(tl.int64)[None, :] * x_stride + o_k[:, None]
    p_ws = p_codes + (i_expert * num_columns + o_n)[:, None] * num_k + o_k[None, :]
    b_acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for i_k in tl.range(0, num_k, BLOCK_K):
        mask_k = i_k + o_k < num_k
        b_w = tl.load(p_ws + i_k, mask=mask_n[:, None] & mask_k[None, :], other=0.0)
        b_x = tl.load(p_xs + i_k, mask=mask_m[None, :] & mask_k[:, None], other=0.0)
        b_acc = tl.dot(b_w.to(b_x.dtype), b_x, b_acc, input_precision="ieee")
    if SCALED:
        b_acc *= tl.load(p_scales + i_expert * num_columns + o_n, mask=mask_n, other=0.0).to(tl.float32)[:, None]
    store_rows(b_acc, p_factors, p_out, o_row, o_n, mask_m, mask_n, out_stride, FACTORS)


def grouped_gemm(
    x: torch.Tensor,
    weights: ExpertWeights,
    blocks: Blocks,
    *,
    top_k: int,
    num_rows: int,
    factors: torch.Tensor | None = None,
    tiles: Tiles,
) -> torch.Tensor:
    """Return rows [num_rows, N]: row r is x[r // top_k] times the weight of its expert, times factors[r] if given.

    For the second product of an expert, whose input has a row for each (token, expert), top_k is 1. `tiles` hold
    the BLOCK_M that `blocks` were made with.
    """
    assert tiles["BLOCK_M"] == blocks.block_m
    _, n, k = weights.codes.shape
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    grouped_gemm_kernel[(triton.cdiv(n, tiles["BLOCK_N"]), len(blocks.experts))](
        x,
        weights.codes,
        weights.scales,
        factors,
        out,
        blocks.rows,
        blocks.experts,
        num_rows,
        n,
        k,
        x.stride(0),
        out.stride(0),
        TOP_K=top_k,
        SCALED=weights.scales is not None,
        FACTORS=factors is not None,
        **tiles,
    )
    return out
