"""Experts: order the rows of a batch by expert, multiply each run of rows by its expert's weight, add up by token.

    y[t k + j] = w[t, j] x[t] W[e(t, j)]^T        e, w: the k experts of token t and what they count
    out[t] = residual[t] + sum_j y[t k + j]

`moe_align` cuts the T k rows into blocks of BLOCK_M rows of one expert each, on the device and in the order of the
rows, so the grid of the product depends on no count that the host would have to read. `expert_mlp` is the whole
feed-forward block after its router.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.triton.gate import gate_reference, gate_rows
from inferd_kernels.triton.tiling import Tiles, tiles_for


class Blocks(NamedTuple):
    """Rows by expert, padded to whole blocks."""

    rows: torch.Tensor
    """[max blocks * BLOCK_M] int32 indices into the T k rows; T k itself = padding"""
    experts: torch.Tensor
    """[max blocks] int32 expert of each block; -1 = unused"""
    block_m: int


class ExpertWeights(NamedTuple):
    """Weights of all experts [E, N, K], float, int8 or fp8; the last two with a scale a row."""

    codes: torch.Tensor
    scales: torch.Tensor | None = None  # [E, N]


def align_reference(experts: torch.Tensor, num_experts: int, block_m: int) -> tuple[list[list[int]], list[int]]:
    """Return the rows of each used block and their experts."""
    flat, blocks, owners = experts.flatten().tolist(), [], []
    for expert in range(num_experts):
        rows = [row for row, other in enumerate(flat) if other == expert]
        for start in range(0, len(rows), block_m):
            blocks.append(rows[start : start + block_m])
            owners.append(expert)
    return blocks, owners


def moe_reference(
    x: torch.Tensor, weights: ExpertWeights, experts: torch.Tensor, factors: torch.Tensor | None
) -> torch.Tensor:
    """Return the product [T k, N] in float32."""
    wide = weights.codes.float()
    if weights.scales is not None:
        wide = wide * weights.scales.float().unsqueeze(-1)
    rows = x.float().repeat_interleave(experts.shape[1], 0)
    y = torch.einsum("rk,rnk->rn", rows, wide[experts.flatten().long()])
    return y if factors is None else y * factors.float().flatten().unsqueeze(1)


def expert_mlp_reference(
    x: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    experts: torch.Tensor,
    factors: torch.Tensor,
    activation: str,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what `expert_mlp` computes, in float32."""
    inner = gate_reference(moe_reference(x, gate_up, experts, None), activation)
    y = moe_reference(inner, down, experts.reshape(-1, 1), factors.reshape(-1, 1))
    y = y.view(*experts.shape, -1).sum(1)
    return y if residual is None else residual.float() + y


@triton.jit(do_not_specialize=["num_rows"])
def count_kernel(p_experts, p_counts, num_rows, BLOCK: tl.constexpr):
    """One program an expert: how many rows are its own."""
    i_expert = tl.program_id(0)
    b_count = tl.zeros([BLOCK], dtype=tl.int32)
    for i_first in range(0, num_rows, BLOCK):
        o_r = i_first + tl.arange(0, BLOCK)
        b_expert = tl.load(p_experts + o_r, mask=o_r < num_rows, other=-1)
        b_count += (b_expert == i_expert).to(tl.int32)
    tl.store(p_counts + i_expert, tl.sum(b_count, 0))


@triton.jit(do_not_specialize=["num_rows"])
def place_kernel(
    p_experts, p_counts, p_rows, p_owners, num_rows, NUM_EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program an expert: its rows in order, padding after them, and its name on its blocks."""
    i_expert = tl.program_id(0)
    o_e = tl.arange(0, BLOCK_E)
    b_blocks = tl.cdiv(tl.load(p_counts + o_e, mask=o_e < NUM_EXPERTS, other=0), BLOCK_M)
    i_block = tl.sum(tl.where(o_e < i_expert, b_blocks, 0), 0)
    num_blocks = tl.sum(tl.where(o_e == i_expert, b_blocks, 0), 0)
    i_next = i_block * BLOCK_M
    for i_first in range(0, num_rows, BLOCK):
        o_r = i_first + tl.arange(0, BLOCK)
        b_own = (tl.load(p_experts + o_r, mask=o_r < num_rows, other=-1) == i_expert).to(tl.int32)
        o_at = i_next + tl.cumsum(b_own, 0) - 1
        tl.store(p_rows + o_at, o_r, mask=b_own > 0)
        i_next += tl.sum(b_own, 0)
    o_m = tl.arange(0, BLOCK_M)
    i_end = (i_block + num_blocks) * BLOCK_M
    tl.store(p_rows + i_next + o_m, tl.zeros([BLOCK_M], dtype=tl.int32) + num_rows, mask=i_next + o_m < i_end)
    for i_own in range(num_blocks):
        tl.store(p_owners + i_block + i_own, i_expert)


def moe_align(experts: torch.Tensor, num_experts: int, block_m: int) -> Blocks:
    """Order the rows of experts [T, k] int32 into blocks of one expert each."""
    num_rows, device = experts.numel(), experts.device
    max_blocks = min(num_rows, triton.cdiv(num_rows, block_m) + num_experts)
    rows = torch.empty(max_blocks * block_m, dtype=torch.int32, device=device)
    owners = torch.full((max_blocks,), -1, dtype=torch.int32, device=device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    block = min(1024, triton.next_power_of_2(num_rows))
    count_kernel[(num_experts,)](experts, counts, num_rows, BLOCK=block, num_warps=4)
    place_kernel[(num_experts,)](
        experts,
        counts,
        rows,
        owners,
        num_rows,
        NUM_EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_M=block_m,
        BLOCK=block,
        num_warps=4,
    )
    return Blocks(rows, owners, block_m)


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
    if FACTORS:
        b_acc *= tl.load(p_factors + o_row, mask=mask_m, other=0.0).to(tl.float32)[None, :]
    o_out = o_row.to(tl.int64)[None, :] * out_stride + o_n[:, None]
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=mask_n[:, None] & mask_m[None, :])


def moe_tiles(num_rows: int, num_experts: int, device: torch.device) -> Tiles:
    """Return the tiles of a product: by how many rows an expert gets on average."""
    return tiles_for("moe", "few" if num_rows <= 16 * num_experts else "many", device)


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


@triton.jit
def sum_experts_kernel(
    p_rows, p_residual, p_out, num_columns, residual_stride, TOP_K: tl.constexpr, BLOCK_N: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Added in the order of j, so that results do not depend on which expert came first."""
    i_token = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = o_n < num_columns
    b_sum = tl.zeros([BLOCK_N], dtype=tl.float32)
    for j in tl.static_range(TOP_K):
        b_sum += tl.load(p_rows + (i_token * TOP_K + j) * num_columns + o_n, mask=mask_n, other=0.0).to(tl.float32)
    if RESIDUAL:
        b_sum += tl.load(p_residual + i_token * residual_stride + o_n, mask=mask_n, other=0.0).to(tl.float32)
    tl.store(p_out + i_token * num_columns + o_n, b_sum.to(p_out.dtype.element_ty), mask=mask_n)


def sum_experts(rows: torch.Tensor, top_k: int, residual: torch.Tensor | None = None) -> torch.Tensor:
    """Return the sum over each run of top_k rows of [T k, N], plus `residual` [T, N]; [T, N]."""
    num_tokens, columns = rows.shape[0] // top_k, rows.shape[1]
    out = torch.empty((num_tokens, columns), dtype=rows.dtype, device=rows.device)
    if num_tokens:
        block = min(512, triton.next_power_of_2(columns))
        sum_experts_kernel[(num_tokens, triton.cdiv(columns, block))](
            rows,
            residual,
            out,
            columns,
            0 if residual is None else residual.stride(0),
            TOP_K=top_k,
            BLOCK_N=block,
            RESIDUAL=residual is not None,
            num_warps=4,
        )
    return out


def expert_mlp(
    x: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    experts: torch.Tensor,
    factors: torch.Tensor,
    activation: str,
    residual: torch.Tensor | None = None,
    *,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Return residual + sum_j factors[t, j] down(act(gate(x)) * up(x)) of experts [T, k] int32 for rows x [T, K].

    `gate_up` holds [E, 2 inner, K], gate before up, `down` [E, K, inner]. Nothing is read back, so the block can be
    captured in a graph.
    """
    num_tokens, top_k = experts.shape
    if not num_tokens:
        return torch.empty_like(x)
    num_experts, num_rows = gate_up.codes.shape[0], num_tokens * top_k
    chosen = tiles or moe_tiles(num_rows, num_experts, x.device)
    blocks = moe_align(experts, num_experts, chosen["BLOCK_M"])
    inner = gate_rows(grouped_gemm(x, gate_up, blocks, top_k=top_k, num_rows=num_rows, tiles=chosen), activation)
    y = grouped_gemm(inner, down, blocks, top_k=1, num_rows=num_rows, factors=factors.flatten(), tiles=chosen)
    return sum_experts(y, top_k, residual)
