"""Rows times 4-bit weights in groups: y[m, n] = sum_k x[m, k] ((code[n, k] - zero) scale[n, g] + min[n, g]) + bias.

Weights are laid out for one pass: [K / 2 HALF, N, HALF] bytes, byte j of a block holding columns j (low nibble) and
j + HALF (high), so that two matrix products read plain slices of x and a tile of codes is one run of memory. The
weight tile is the first operand of the product, which small row counts fill far better.

With few rows the scale is applied to the product of each group (exact codes, less work); with many the weight is
brought to the type of x first, so that the products chain. Columns that do not fill the last block are padding: their
codes are zeros and x is not read there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from inferd_kernels.reference.forms import Packed, dequantize
from inferd_kernels.triton.split_k import Epilogue, add_parts, plan_launch, store_product
from inferd_kernels.triton.tiling import Tiles

FEW_ROWS = 64
"""Most rows of a tile whose products are scaled group by group."""


class Weight4(NamedTuple):
    """A weight [N, K] in kernel order."""

    codes: torch.Tensor  # uint8 [ceil(K / (2 half)), N, half]
    scales: torch.Tensor  # [K / group, N]
    mins: torch.Tensor | None  # [K / group, N]
    shape: tuple[int, int]
    group: int
    zero: int

    @property
    def half(self) -> int:
        return self.codes.shape[2]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.codes, self.scales, self.mins) if t is not None)


def half_of(columns: int, group: int) -> int:
    """Return the columns a nibble plane of a block covers, all of one group; 0 = the weight does not fit."""
    if group % 64 == 0 and columns % 128 == 0:
        return 64
    return next((half for half in (32, 16) if group % half == 0), 0)


def pack_w4(weight: Packed, device: str | torch.device) -> Weight4:
    """Put a `u4_group` weight into kernel order on a device."""
    rows, columns = weight.shape
    half = half_of(columns, weight.group)
    codes = weight.planes["codes"].to(device)  # even column in the low nibble
    values = F.pad(torch.stack((codes & 15, codes >> 4), dim=-1).view(rows, columns), (0, -columns % (2 * half)))
    values = values.view(rows, -1, 2, half)
    packed = (values[:, :, 0] | (values[:, :, 1] << 4)).permute(1, 0, 2).contiguous()
    planes = {name: weight.planes[name].to(device).t().contiguous() for name in weight.planes if name != "codes"}
    return Weight4(packed, planes["scales"], planes.get("mins"), (rows, columns), weight.group, weight.zero)


def gemm_w4_reference(x: torch.Tensor, weight: Packed, epilogue: Epilogue) -> torch.Tensor:
    """Return the product in float32, from the weight as stored."""
    y = x.float() @ dequantize(weight).to(x.device).t()
    y = y if epilogue.bias is None else y + epilogue.bias.float()
    return (y if epilogue.residual is None else y + epilogue.residual.float()).to(x.dtype)


@triton.jit
def nibbles_to(b_codes, ZERO: tl.constexpr, DTYPE: tl.constexpr):
    """Return codes - ZERO in a float type; the 16-bit types set mantissa bits instead of converting."""
    if tl.bfloat16 == DTYPE:
        return (b_codes.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - (128.0 + ZERO)
    elif tl.float16 == DTYPE:
        return (b_codes.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + ZERO)
    else:
        return b_codes.to(tl.float32) - ZERO


@triton.jit
def add_half(
    b_acc, b_codes, b_x, p_scales, p_mins, o_n, mask_n, ZERO: tl.constexpr, MINS: tl.constexpr, CHAIN: tl.constexpr
):
    """Add the product of one nibble plane [BLOCK_N, HALF] and x [HALF, BLOCK_M]; pointers are those of its group."""
    b_w = nibbles_to(b_codes, ZERO, b_x.dtype)
    b_scale = tl.load(p_scales + o_n, mask=mask_n, other=0.0).to(tl.float32)
    if CHAIN:
        b_wide = b_w.to(tl.float32) * b_scale[:, None]
        if MINS:
            b_wide += tl.load(p_mins + o_n, mask=mask_n, other=0.0).to(tl.float32)[:, None]
        b_acc = tl.dot(b_wide.to(b_x.dtype), b_x, b_acc, input_precision="ieee")
    else:
        b_acc += tl.dot(b_w, b_x, input_precision="ieee") * b_scale[:, None]
        if MINS:
            b_min = tl.load(p_mins + o_n, mask=mask_n, other=0.0).to(tl.float32)
            b_acc += b_min[:, None] * tl.sum(b_x.to(tl.float32), 0)[None, :]
    return b_acc


@triton.jit
def add_blocks(
    b_acc,
    p_rows,
    mask_m,
    p_codes,
    p_scales,
    p_mins,
    o_n,
    mask_n,
    i_begin,
    i_end,
    num_columns,
    num_k,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    ZERO: tl.constexpr,
    MINS: tl.constexpr,
    CHAIN: tl.constexpr,
    TAIL: tl.constexpr,
):
    """Add the products of blocks [i_begin, i_end) of K: weight [BLOCK_N, K] and rows at `p_rows` [BLOCK_M].

    TAIL: the last block reaches past K.
    """
    o_h = tl.arange(0, HALF)
    p_xs = p_rows[None, :] + o_h[:, None]
    for i_block in tl.range(i_begin, i_end):
        o_codes = (i_block * num_columns + o_n).to(tl.int64)[:, None] * HALF + o_h[None, :]
        b_codes = tl.load(p_codes + o_codes, mask=mask_n[:, None], other=0)
        i_low = i_block * (2 * HALF)
        i_high = i_low + HALF
        i_high_group = i_high // GROUP
        if TAIL:
            b_low = tl.load(p_xs + i_low, mask=mask_m[None, :] & (i_low + o_h < num_k)[:, None], other=0.0)
            b_high = tl.load(p_xs + i_high, mask=mask_m[None, :] & (i_high + o_h < num_k)[:, None], other=0.0)
            i_high_group = tl.minimum(i_high_group, (num_k - 1) // GROUP)
        else:
            b_low = tl.load(p_xs + i_low, mask=mask_m[None, :], other=0.0)
            b_high = tl.load(p_xs + i_high, mask=mask_m[None, :], other=0.0)
        o_low = (i_low // GROUP) * num_columns
        o_high = i_high_group * num_columns
        b_acc = add_half(b_acc, b_codes & 15, b_low, p_scales + o_low, p_mins + o_low, o_n, mask_n, ZERO, MINS, CHAIN)
        b_acc = add_half(
            b_acc, b_codes >> 4, b_high, p_scales + o_high, p_mins + o_high, o_n, mask_n, ZERO, MINS, CHAIN
        )
    return b_acc


@triton.jit(do_not_specialize=["num_rows"])
def gemm_w4_kernel(
    p_x,
    p_codes,
    p_scales,
    p_mins,
    p_out,
    p_part,
    p_bias,
    p_residual,
    num_rows,
    num_columns,
    num_k,
    x_stride,
    out_stride,
    residual_stride,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    ZERO: tl.constexpr,
    MINS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    CHAIN: tl.constexpr,
    TAIL: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_split = tl.program_id(2)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_n = o_n < num_columns
    num_blocks = tl.cdiv(num_k, 2 * HALF)
    per_split = tl.cdiv(num_blocks, SPLITS)
    i_begin = i_split * per_split
    b_acc = add_blocks(
        tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32), p_x + o_m.to(tl.int64) * x_stride, o_m < num_rows,
        p_codes, p_scales, p_mins, o_n, mask_n, i_begin, tl.minimum(i_begin + per_split, num_blocks), num_columns,
        num_k, GROUP, HALF, ZERO, MINS, CHAIN, TAIL,
    )  # fmt: skip
    store_product(
        b_acc, p_out, p_bias, p_residual, p_part, i_split, o_n, o_m, num_rows, num_columns, out_stride,
        residual_stride, SPLITS, BIAS, RESIDUAL,
    )  # fmt: skip


def gemm_w4(
    x: torch.Tensor,
    weight: Weight4,
    epilogue: Epilogue = Epilogue(),
    *,
    out: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Return x [M, K] times the weight, [M, N] in the dtype of x."""
    m, (n, columns) = x.shape[0], weight.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device) if out is None else out
    if not m:
        return out
    launch = plan_launch("gemm_w4", x, n, weight.codes.shape[0], tiles)
    gemm_w4_kernel[launch.grid](
        x,
        weight.codes,
        weight.scales,
        weight.scales if weight.mins is None else weight.mins,
        out,
        launch.part,
        epilogue.bias,
        epilogue.residual,
        m,
        n,
        columns,
        x.stride(0),
        out.stride(0),
        0 if epilogue.residual is None else epilogue.residual.stride(0),
        GROUP=weight.group,
        HALF=weight.half,
        ZERO=weight.zero,
        MINS=weight.mins is not None,
        BIAS=epilogue.bias is not None,
        RESIDUAL=epilogue.residual is not None,
        CHAIN=launch.tiles["BLOCK_M"] > FEW_ROWS,
        TAIL=columns % (2 * weight.half) > 0,
        SPLITS=launch.splits,
        **launch.tiles,
    )
    if launch.part is not None:
        add_parts(launch.part, out, epilogue)
    return out
