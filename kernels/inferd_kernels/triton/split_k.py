"""What the packed matrix kernels share: how K is split among programs, and the ordered sum of the parts.

    y[m, n] = sum_s part[s, m, n] + bias[n] + residual[m, n]

Parts are added in the order of s, so results do not depend on timing; how many there are depends on the shape of
the weight alone, so they do not depend on the number of rows either (within one tile case).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.triton.tiling import Tiles, num_processors, tiles_for

CASES = (16, 32, 64)
"""Row counts that have a case of their own; more rows are `large`."""


class Epilogue(NamedTuple):
    """What is added to a product [M, N]."""

    bias: torch.Tensor | None = None  # [N]
    residual: torch.Tensor | None = None  # [M, N]


class Launch(NamedTuple):
    tiles: dict[str, int]
    """BLOCK_M, BLOCK_N, num_warps, num_stages."""
    splits: int
    grid: tuple[int, int, int]
    """Programs over columns, rows and splits."""
    part: torch.Tensor | None
    """Where K is split: what each split writes, [splits, M, N] float32."""


def case_of(x: torch.Tensor) -> str:
    """Return the tile case of rows [M, K]: float32 is multiplied outside the matrix units, whose tiles do not fit."""
    if x.dtype == torch.float32:
        return "fp32"
    return next((f"m{case}" for case in CASES if x.shape[0] <= case), "large")


def plan_launch(kernel: str, x: torch.Tensor, n: int, num_blocks: int, tiles: Tiles | None) -> Launch:
    """Choose tiles and splits of rows x times n columns over `num_blocks` blocks of K, and make room for the parts.

    `PROGRAMS` in the tiles is how many programs a multiprocessor should get; 0 = K is never split.
    """
    m, device = x.shape[0], x.device
    chosen = dict(tiles or tiles_for(kernel, case_of(x), device))
    wanted = chosen.pop("PROGRAMS", 0) * num_processors(device)
    columns, rows = triton.cdiv(n, chosen["BLOCK_N"]), triton.cdiv(m, chosen["BLOCK_M"])
    splits = min(num_blocks, max(1, wanted // columns))
    part = torch.empty((splits, m, n), dtype=torch.float32, device=device) if splits > 1 else None
    return Launch(chosen, splits, (columns, rows, splits), part)


@triton.jit
def store_product(
    b_acc,
    p_out,
    p_bias,
    p_residual,
    p_part,
    i_split,
    o_n,
    o_m,
    num_rows,
    num_columns,
    out_stride,
    residual_stride,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """Store acc [BLOCK_N, BLOCK_M]: as one part, or finished where K is not split."""
    mask = (o_n < num_columns)[:, None] & (o_m < num_rows)[None, :]
    if SPLITS > 1:
        o_part = (i_split.to(tl.int64) * num_rows + o_m)[None, :] * num_columns + o_n[:, None]
        tl.store(p_part + o_part, b_acc, mask=mask)
    else:
        if BIAS:
            b_acc += tl.load(p_bias + o_n, mask=o_n < num_columns, other=0.0).to(tl.float32)[:, None]
        o_wide = o_m.to(tl.int64)[None, :]
        if RESIDUAL:
            o_residual = o_wide * residual_stride + o_n[:, None]
            b_acc += tl.load(p_residual + o_residual, mask=mask, other=0.0).to(tl.float32)
        tl.store(p_out + o_wide * out_stride + o_n[:, None], b_acc.to(p_out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def add_parts_kernel(
    p_part,
    p_out,
    p_bias,
    p_residual,
    num_rows,
    num_columns,
    out_stride,
    residual_stride,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = o_n < num_columns
    b_sum = tl.zeros([BLOCK_N], dtype=tl.float32)
    for i_split in tl.static_range(SPLITS):
        b_sum += tl.load(p_part + (i_split * num_rows + i_row) * num_columns + o_n, mask=mask_n, other=0.0)
    if BIAS:
        b_sum += tl.load(p_bias + o_n, mask=mask_n, other=0.0).to(tl.float32)
    if RESIDUAL:
        b_sum += tl.load(p_residual + i_row * residual_stride + o_n, mask=mask_n, other=0.0).to(tl.float32)
    tl.store(p_out + i_row * out_stride + o_n, b_sum.to(p_out.dtype.element_ty), mask=mask_n)


def add_parts(part: torch.Tensor, out: torch.Tensor, epilogue: Epilogue) -> None:
    """Write the sum of part [splits, M, N] float32, with bias and residual, into `out` [M, N]."""
    splits, num_rows, columns = part.shape
    block = min(512, triton.next_power_of_2(columns))
    add_parts_kernel[(num_rows, triton.cdiv(columns, block))](
        part,
        out,
        epilogue.bias,
        epilogue.residual,
        num_rows,
        columns,
        out.stride(0),
        0 if epilogue.residual is None else epilogue.residual.stride(0),
        SPLITS=splits,
        BLOCK_N=block,
        BIAS=epilogue.bias is not None,
        RESIDUAL=epilogue.residual is not None,
        num_warps=4,
    )
