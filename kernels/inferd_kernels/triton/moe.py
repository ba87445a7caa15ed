"""Experts: order the rows of a batch by expert, multiply each run of rows by its expert's weight, add up by token.

    y[t k + j] = w[t, j] x[t] W[e(t, j)]^T        e, w: the k experts of token t and what they count
    out[t] = residual[t] + sum_j y[t k + j]

`expert_mlp` is the whole feed-forward block after its router; nothing of it is read back by the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inferd_kernels.triton.gate import gate_reference, gate_rows
from inferd_kernels.triton.grouped_gemm import ExpertWeights, grouped_gemm
from inferd_kernels.triton.grouped_gemm_w4 import ExpertWeights4, grouped_gemm_w4
from inferd_kernels.triton.moe_align import Blocks, moe_align
from inferd_kernels.triton.tiling import Tiles, tiles_for

Experts = ExpertWeights | ExpertWeights4


def moe_reference(
    x: torch.Tensor, weights: Experts, experts: torch.Tensor, factors: torch.Tensor | None
) -> torch.Tensor:
    """Return the product [T k, N] in float32."""
    rows = x.float().repeat_interleave(experts.shape[1], 0)
    y = torch.einsum("rk,rnk->rn", rows, weights.dense()[experts.flatten().long()])
    return y if factors is None else y * factors.float().flatten().unsqueeze(1)


def expert_mlp_reference(
    x: torch.Tensor,
    gate_up: Experts,
    down: Experts,
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


def moe_tiles(x: torch.Tensor, weights: Experts, num_rows: int) -> Tiles:
    """Return the tiles of a product with `num_rows` rows: by how many an expert gets on average."""
    few = num_rows <= 16 * weights.codes.shape[0]
    case = "fp32" if x.dtype == torch.float32 else "few" if few else "many"
    return tiles_for("moe_w4" if isinstance(weights, ExpertWeights4) else "moe", case, x.device)


def expert_product(
    x: torch.Tensor,
    weights: Experts,
    blocks: Blocks,
    *,
    top_k: int,
    num_rows: int,
    factors: torch.Tensor | None = None,
    tiles: Tiles,
) -> torch.Tensor:
    """Return rows [num_rows, N] as `grouped_gemm` does, of weights of either kind."""
    options = {"top_k": top_k, "num_rows": num_rows, "factors": factors, "tiles": tiles}
    if isinstance(weights, ExpertWeights4):
        return grouped_gemm_w4(x, weights, blocks, **options)
    return grouped_gemm(x, weights, blocks, **options)


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
    gate_up: Experts,
    down: Experts,
    experts: torch.Tensor,
    factors: torch.Tensor,
    activation: str,
    residual: torch.Tensor | None = None,
    *,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Return residual + sum_j factors[t, j] down(act(gate(x)) * up(x)) of experts [T, k] int32 for rows x [T, K].

    `gate_up` holds [E, 2 inner, K], gate before up, `down` [E, K, inner], both of one kind. Nothing is read back, so
    the block can be captured in a graph.
    """
    num_tokens, top_k = experts.shape
    if not num_tokens:
        return torch.empty_like(x)
    num_experts, num_rows = gate_up.codes.shape[0], num_tokens * top_k
    chosen = tiles or moe_tiles(x, gate_up, num_rows)
    blocks = moe_align(experts, num_experts, chosen["BLOCK_M"])
    inner = gate_rows(expert_product(x, gate_up, blocks, top_k=top_k, num_rows=num_rows, tiles=chosen), activation)
    y = expert_product(inner, down, blocks, top_k=1, num_rows=num_rows, factors=factors.flatten(), tiles=chosen)
    return sum_experts(y, top_k, residual)
