"""Rows times the 4-bit weights of their experts: y[r] = f[r] x[r // top_k] ((code - zero) scale + min)[e(r)]^T.

Each expert's weight lies as `gemm_w4` reads it; products are made and scaled as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.reference.forms import Packed
from inferd_kernels.triton.gemm_w4 import FEW_ROWS, add_blocks, pack_w4
from inferd_kernels.triton.grouped_gemm import store_rows
from inferd_kernels.triton.moe_align import Blocks
from inferd_kernels.triton.tiling import Tiles


class ExpertWeights4(NamedTuple):
    """Weights [N, K] of all experts, in the kernel order of `Weight4`."""

    codes: torch.Tensor  # uint8 [E, ceil(K / (2 half)), N, half]
    scales: torch.Tensor  # [E, K / group, N]
    mins: torch.Tensor | None  # [E, K / group, N]
    shape: tuple[int, int]
    group: int
    zero: int

    @property
    def half(self) -> int:
        return self.codes.shape[3]

    def dense(self) -> torch.Tensor:
        """Return the weights [E, N, K] in float32."""
        n, k = self.shape
        nibbles = torch.stack((self.codes & 15, self.codes >> 4), dim=3)  # [E, blocks, N, 2, half]
        values = nibbles.permute(0, 2, 1, 3, 4).reshape(len(nibbles), n, -1)[:, :, :k].float() - self.zero
        spread = [
            plane.float().transpose(1, 2).repeat_interleave(self.group, 2)
            for plane in (self.scales, self.mins)
            if plane is not None
        ]
        return values * spread[0] + (spread[1] if len(spread) > 1 else 0.0)


def pack_experts_w4(weights: Sequence[Packed], device: str | torch.device) -> ExpertWeights4:
    """Put the `u4_group` weights of all experts, of one shape and group, into kernel order on a device."""
    packed = [pack_w4(weight, device) for weight in weights]
    first = packed[0]
    mins = None if first.mins is None else torch.stack([each.mins for each in packed if each.mins is not None])
    codes, scales = (torch.stack([getattr(each, name) for each in packed]) for name in ("codes", "scales"))
    return ExpertWeights4(codes, scales, mins, first.shape, first.group, first.zero)


@triton.jit(do_not_specialize=["num_rows"])
def grouped_gemm_w4_kernel(
    p_x,
    p_codes,
    p_scales,
    p_mins,
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
    FACTORS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    ZERO: tl.constexpr,
    MINS: tl.constexpr,
    CHAIN: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_block = tl.program_id(1)
    i_expert = tl.load(p_owners + i_block).to(tl.int64)
    if i_expert < 0:
        return
    o_row = tl.load(p_rows + i_block * BLOCK_M + tl.arange(0, BLOCK_M))
    mask_m = o_row < num_rows
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = o_n < num_columns
    num_blocks = tl.cdiv(num_k, 2 * HALF)
    i_planes = i_expert * (tl.cdiv(num_k, GROUP) * num_columns)
    b_acc = add_blocks(
        tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32), p_x + (o_row // TOP_K).to(tl.int64) * x_stride, mask_m,
        p_codes + i_expert * num_blocks * num_columns * HALF, p_scales + i_planes, p_mins + i_planes, o_n, mask_n,
        0, num_blocks, num_columns, num_k, GROUP, HALF, ZERO, MINS, CHAIN, TAIL,
    )  # fmt: skip
    store_rows(b_acc, p_factors, p_out, o_row, o_n, mask_m, mask_n, out_stride, FACTORS)


def grouped_gemm_w4(
    x: torch.Tensor,
    weights: ExpertWeights4,
    blocks: Blocks,
    *,
    top_k: int,
    num_rows: int,
    factors: torch.Tensor | None = None,
    tiles: Tiles,
) -> torch.Tensor:
    """Return what `grouped_gemm` returns, of 4-bit weights."""
    assert tiles["BLOCK_M"] == blocks.block_m
    n, k = weights.shape
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    grouped_gemm_w4_kernel[(triton.cdiv(n, tiles["BLOCK_N"]), len(blocks.experts))](
        x,
        weights.codes,
        weights.scales,
        weights.scales if weights.mins is None else weights.mins,
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
        FACTORS=factors is not None,
        GROUP=weights.group,
        HALF=weights.half,
        ZERO=weights.zero,
        MINS=weights.mins is not None,
        CHAIN=tiles["BLOCK_M"] > FEW_ROWS,
        TAIL=k % (2 * weights.half) > 0,
        **tiles,
    )
    return out
