"""Rows of a float table by token id, scaled: y[t] = scale * table[ids[t]]."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def embedding_reference(table: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    rows = table.index_select(0, ids).float() * scale
    return rows.to(dtype)


@triton.jit
def embedding_kernel(p_table, p_ids, p_out, table_stride, num_columns, scale, BLOCK_K: tl.constexpr):
    i_row = tl.program_id(0).to(tl.int64)
    o_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = o_k < num_columns
    i_id = tl.load(p_ids + i_row).to(tl.int64)
    b_row = tl.load(p_table + i_id * table_stride + o_k, mask=mask_k, other=0.0).to(tl.float32)
    tl.store(p_out + i_row * num_columns + o_k, (b_row * scale).to(p_out.dtype.element_ty), mask=mask_k)


def embedding_rows(table: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """Return `scale` times the rows at `ids` [T] int32 of table [V, K], as [T, K] of `dtype`."""
    columns = table.shape[1]
    out = torch.empty((len(ids), columns), dtype=dtype, device=table.device)
    if len(ids):
        block = min(1024, triton.next_power_of_2(columns))
        embedding_kernel[(len(ids), triton.cdiv(columns, block))](
            table, ids, out, table.stride(0), columns, scale, BLOCK_K=block, num_warps=min(4, max(1, block // 256))
        )
    return out
