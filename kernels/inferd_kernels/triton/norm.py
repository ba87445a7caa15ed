"""RMSNorm of rows, with what comes before and after it in one pass.

    x = residual + x (where given);   y = x / sqrt(mean(x^2) + eps) * weight;   codes = round(y / s), s = max|y| / M

The quantized form is what the 8-bit matrix kernels read: codes of a row and one scale (int8: M = 127, fp8: M = 448).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.reference.norm import rms_norm
from inferd_kernels.triton.kv_write import LARGEST


class QuantizedRows(NamedTuple):
    """Rows of an 8-bit type: value = code * scale."""

    codes: torch.Tensor  # [T, K] int8 or float8_e4m3fn
    scales: torch.Tensor  # [T] float32
    dtype: torch.dtype = torch.float32
    """Of the rows they were made of, and so of their products."""

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        return self.codes.device


def quantize_rows_reference(x: torch.Tensor, dtype: torch.dtype) -> QuantizedRows:
    """Return rows x [T, K] as codes of an 8-bit dtype."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST[dtype]
    values = x.float() / scale.where(scale > 0, 1.0)
    return QuantizedRows(
        (torch.floor(values + 0.5) if dtype == torch.int8 else values).to(dtype), scale.squeeze(-1), x.dtype
    )


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normed rows and the sum that was normed."""
    total = x if residual is None else (residual.float() + x.float()).to(x.dtype)
    return rms_norm(total, weight, eps), total


@triton.jit
def write_rows(p_out, p_scale, i_row, o_k, mask_k, b_y, out_stride, LARGEST: tl.constexpr, ROUND: tl.constexpr):
    """Store one row, quantized where LARGEST > 0."""
    if LARGEST > 0:
        b_scale = tl.max(tl.where(mask_k, tl.abs(b_y), 0.0), 0) / LARGEST
        b_y = b_y / tl.where(b_scale > 0, b_scale, 1.0)
        if ROUND:
            b_y = tl.floor(b_y + 0.5)
        tl.store(p_scale + i_row, b_scale)
    tl.store(p_out + i_row * out_stride + o_k, b_y.to(p_out.dtype.element_ty), mask=mask_k)


@triton.jit
def rms_norm_kernel(
    p_x,
    p_residual,
    p_weight,
    p_total,
    p_out,
    p_scale,
    x_stride,
    residual_stride,
    out_stride,
    num_columns,
    eps,
    BLOCK_K: tl.constexpr,
    RESIDUAL: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUND: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BLOCK_K)
    mask_k = o_k < num_columns
    b_x = tl.load(p_x + i_row * x_stride + o_k, mask=mask_k, other=0.0)
    if RESIDUAL:
        b_residual = tl.load(p_residual + i_row * residual_stride + o_k, mask=mask_k, other=0.0)
        b_x = (b_residual.to(tl.float32) + b_x.to(tl.float32)).to(p_x.dtype.element_ty)
        tl.store(p_total + i_row * out_stride + o_k, b_x, mask=mask_k)
    b_x = b_x.to(tl.float32)
    b_weight = tl.load(p_weight + o_k, mask=mask_k, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / num_columns + eps) * b_weight
    if LARGEST > 0:
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
    write_rows(p_out, p_scale, i_row, o_k, mask_k, b_y, out_stride, LARGEST, ROUND)


def rms_norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the normed rows of x [T, K] in its dtype; `weight` [K]."""
    return _launch(x, weight, eps, None, None)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normed rows of residual + x, and that sum."""
    out, _, total = _launch(x, weight, eps, residual, None)
    return out, total


def rms_norm_quantized(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, residual: torch.Tensor | None = None
) -> tuple[QuantizedRows, torch.Tensor]:
    """Return the normed rows as codes of an 8-bit dtype, and the sum that was normed."""
    out, scales, total = _launch(x, weight, eps, residual, dtype)
    assert scales is not None
    return QuantizedRows(out, scales, x.dtype), total


def _launch(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None, dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    num_rows, columns = x.shape
    out = torch.empty((num_rows, columns), dtype=dtype or x.dtype, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device) if dtype else None
    total = x if residual is None else torch.empty((num_rows, columns), dtype=x.dtype, device=x.device)
    if num_rows:
        block = triton.next_power_of_2(columns)
        rms_norm_kernel[(num_rows,)](
            x,
            residual,
            weight,
            total,
            out,
            scales,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            out.stride(0),
            columns,
            eps,
            BLOCK_K=block,
            RESIDUAL=residual is not None,
            LARGEST=LARGEST[dtype] if dtype else 0.0,
            ROUND=dtype == torch.int8,
            num_warps=min(16, max(1, block // 512)),
        )
    return out, scales, total
