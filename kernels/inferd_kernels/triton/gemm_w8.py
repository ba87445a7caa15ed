"""Rows times 8-bit weights, int8 or fp8: y[m, n] = sum_k x[m, k] ((code[n, k] - zero) scale[n, g] + min[n, g]) + bias.

x is a float matrix (weights are brought to its type), or rows quantized to the type of the weight, whose product is
then made by the 8-bit matrix units: y[m, n] = x_scale[m] scale[n, g] sum_k x_code code. One scale a row of the
weight is a group of all its columns; the square blocks of fp8 checkpoints are groups whose scales repeat.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.reference.forms import Packed, dequantize
from inferd_kernels.triton.norm import QuantizedRows
from inferd_kernels.triton.split_k import Epilogue, add_parts, plan_launch, store_product
from inferd_kernels.triton.tiling import Tiles


class Weight8(NamedTuple):
    """A weight [N, K] as stored, its scales by column group first."""

    codes: torch.Tensor  # int8 or float8_e4m3fn [N, K]
    scales: torch.Tensor  # [K / group, N]
    mins: torch.Tensor | None  # [K / group, N]
    group: int
    zero: int

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.codes, self.scales, self.mins) if t is not None)


def block_of(columns: int, group: int) -> int:
    """Return the columns of a K block; 0 = the weight does not fit this kernel."""
    return next((block for block in (128, 64, 32) if group % block == 0 and columns % block == 0), 0)


def group_of(weight: Packed) -> int:
    """Return the columns that share a scale: all of them where a row has one scale."""
    columns, scales = weight.shape[1], weight.planes["scales"]
    return columns if scales.ndim == 1 else weight.group or columns // scales.shape[1]


def pack_w8(weight: Packed, device: str | torch.device) -> Weight8:
    """Put an `i8_group`, `i8_channel` or `fp8` weight into kernel order on a device."""
    rows = weight.shape[0]
    codes, scales = weight.planes["codes"].to(device), weight.planes["scales"].to(device)
    mins = weight.planes.get("mins")
    if scales.ndim == 1:
        scales = scales.unsqueeze(0)
    else:
        if weight.form == "fp8":
            block_rows = weight.group or triton.cdiv(rows, scales.shape[0])
            scales = scales.repeat_interleave(block_rows, 0)[:rows]
        scales = scales.t()
    placed = None if mins is None else mins.to(device).t().contiguous()
    return Weight8(codes, scales.contiguous(), placed, group_of(weight), weight.zero)


def gemm_w8_reference(x: torch.Tensor | QuantizedRows, weight: Packed, epilogue: Epilogue) -> torch.Tensor:
    """Return the product in float32, from the weight as stored."""
    rows = x.codes.float() * x.scales.unsqueeze(1) if isinstance(x, QuantizedRows) else x.float()
    y = rows @ dequantize(weight).to(rows.device).t()
    y = y if epilogue.bias is None else y + epilogue.bias.float()
    return y if epilogue.residual is None else y + epilogue.residual.float()


@triton.jit(do_not_specialize=["num_rows"])
def gemm_w8_kernel(
    p_x,
    p_x_scale,
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
    BLOCK_K: tl.constexpr,
    ZERO: tl.constexpr,
    MINS: tl.constexpr,
    CHANNEL: tl.constexpr,
    QUANTIZED: tl.constexpr,
    INTEGER: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """CHANNEL: one scale a weight row, applied at the end. INTEGER: both operands are int8."""
    i_split = tl.program_id(2)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_n = o_n < num_columns
    mask_m = o_m < num_rows
    o_k = tl.arange(0, BLOCK_K)
    num_blocks = num_k // BLOCK_K
    per_split = tl.cdiv(num_blocks, SPLITS)
    i_begin = i_split * per_split
    i_end = tl.minimum(i_begin + per_split, num_blocks)
    ACC: tl.constexpr = tl.int32 if INTEGER and CHANNEL else tl.float32
    b_acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=ACC)
    p_rows = p_x + o_m.to(tl.int64)[None, :] * x_stride + o_k[:, None]
    p_weight = p_codes + o_n.to(tl.int64)[:, None] * num_k + o_k[None, :]
    for i_block in tl.range(i_begin, i_end):
        b_w = tl.load(p_weight + i_block * BLOCK_K, mask=mask_n[:, None], other=0.0)
        b_x = tl.load(p_rows + i_block * BLOCK_K, mask=mask_m[None, :], other=0.0)
        if not QUANTIZED:
            b_w = b_w.to(b_x.dtype)
            if ZERO != 0:
                b_w -= ZERO
        if CHANNEL:
            b_acc = tl.dot(b_w, b_x, b_acc, input_precision="ieee", out_dtype=ACC)
        else:
            o_group = (i_block * BLOCK_K // GROUP) * num_columns + o_n
            b_scale = tl.load(p_scales + o_group, mask=mask_n, other=0.0).to(tl.float32)
            if INTEGER:
                b_part = tl.dot(b_w, b_x, out_dtype=tl.int32).to(tl.float32)
            else:
                b_part = tl.dot(b_w, b_x, input_precision="ieee")
            b_acc += b_part * b_scale[:, None]
            if MINS:
                b_min = tl.load(p_mins + o_group, mask=mask_n, other=0.0).to(tl.float32)
                b_acc += b_min[:, None] * tl.sum(b_x.to(tl.float32), 0)[None, :]
    b_out = b_acc.to(tl.float32)
    if CHANNEL:
        b_out *= tl.load(p_scales + o_n, mask=mask_n, other=0.0).to(tl.float32)[:, None]
    if QUANTIZED:
        b_out *= tl.load(p_x_scale + o_m, mask=mask_m, other=0.0)[None, :]
    store_product(
        b_out, p_out, p_bias, p_residual, p_part, i_split, o_n, o_m, num_rows, num_columns, out_stride,
        residual_stride, SPLITS, BIAS, RESIDUAL,
    )  # fmt: skip


def gemm_w8(
    x: torch.Tensor | QuantizedRows,
    weight: Weight8,
    epilogue: Epilogue = Epilogue(),
    *,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    tiles: Tiles | None = None,
    kernel: str = "gemm_w8",
) -> torch.Tensor:
    """Return x [M, K] times the weight, [M, N] in `dtype` (default: that of x).

    Quantized rows take weights without zero points and mins. `kernel` names the table of tiles.
    """
    quantized = isinstance(x, QuantizedRows)
    rows = x.codes if quantized else x
    m, (n, columns) = rows.shape[0], weight.shape
    if out is None:
        out = torch.empty((m, n), dtype=dtype or x.dtype, device=rows.device)
    if not m:
        return out
    assert not quantized or (rows.dtype == weight.codes.dtype and weight.mins is None and not weight.zero)
    block_k = block_of(columns, weight.group)
    launch = plan_launch(kernel, rows, n, columns // block_k, tiles)
    gemm_w8_kernel[launch.grid](
        rows,
        x.scales if quantized else rows,
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
        rows.stride(0),
        out.stride(0),
        0 if epilogue.residual is None else epilogue.residual.stride(0),
        GROUP=weight.group,
        BLOCK_K=block_k,
        ZERO=weight.zero,
        MINS=weight.mins is not None,
        CHANNEL=weight.scales.shape[0] == 1 and weight.mins is None,
        QUANTIZED=quantized,
        INTEGER=rows.dtype == torch.int8,
        BIAS=epilogue.bias is not None,
        RESIDUAL=epilogue.residual is not None,
        SPLITS=launch.splits,
        **launch.tiles,
    )
    if launch.part is not None:
        add_parts(launch.part, out, epilogue)
    return out
