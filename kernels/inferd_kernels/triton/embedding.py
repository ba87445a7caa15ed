"""Rows of a table by token id, scaled: y[t] = scale * table[ids[t]].

The table is a float one, or an 8-bit weight as `gemm_w8` multiplies by: (code - zero) scale[group] + min[group].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inferd_kernels.reference.forms import Packed, dequantize
from inferd_kernels.triton.gemm_w8 import Weight8


def embedding_reference(table: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    rows = table.index_select(0, ids).float() * scale
    return rows.to(dtype)


def packed_reference(weight: Packed, ids: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    return embedding_reference(dequantize(weight), ids, dtype, scale)


@triton.jit
def embedding_kernel(
    p_table,
    p_ids,
    p_scales,
    p_mins,
    p_out,
    table_stride,
    num_columns,
    num_table_rows,
    scale,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    MINS: tl.constexpr,
):
    """GROUP: columns that share a scale of the table, which lie [groups, rows]; 0 = it has none."""
    i_row = tl.program_id(0).to(tl.int64)
    o_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = o_k < num_columns
    i_id = tl.load(p_ids + i_row).to(tl.int64)
    b_row = tl.load(p_table + i_id * table_stride + o_k, mask=mask_k, other=0.0).to(tl.float32)
    if GROUP > 0:
        o_group = (o_k // GROUP).to(tl.int64) * num_table_rows + i_id
        b_row = (b_row - ZERO) * tl.load(p_scales + o_group, mask=mask_k, other=0.0).to(tl.float32)
        if MINS:
            b_row += tl.load(p_mins + o_group, mask=mask_k, other=0.0).to(tl.float32)
    tl.store(p_out + i_row * num_columns + o_k, (b_row * scale).to(p_out.dtype.element_ty), mask=mask_k)


def embedding_rows(
    table: torch.Tensor | Weight8, ids: torch.Tensor, dtype: torch.dtype, scale: float = 1.0
) -> torch.Tensor:
    """Return `scale` times the rows at `ids` [T] int32 of table [V, K], as [T, K] of `dtype`."""
    packed = isinstance(table, Weight8)
    values = table.codes if packed else table
    rows, columns = values.shape
    out = torch.empty((len(ids), columns), dtype=dtype, device=values.device)
    if len(ids):
        block = min(1024, triton.next_power_of_2(columns))
        embedding_kernel[(len(ids), triton.cdiv(columns, block))](
            values,
            ids,
            table.scales if packed else None,
            table.mins if packed else None,
            out,
            values.stride(0),
            columns,
            rows,
            scale,
            BLOCK_K=block,
            GROUP=table.group if packed else 0,
            ZERO=table.zero if packed else 0,
            MINS=packed and table.mins is not None,
            num_warps=min(4, max(1, block // 256)),
        )
    return out
