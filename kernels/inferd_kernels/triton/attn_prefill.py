"""Attention of many query rows over paged keys (FlashAttention, Dao et al. 2022), ragged and causal.

    out[t, h] = softmax_s(scale q[t, h] . k[s, h // group]) v[s, h // group],  s <= position(t), inside the window

The query heads of one KV head are rows of the same tile, so each key is read once for all of them. A program
is one tile of rows of one sequence and KV head; the last rows, which see the most keys, start first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from inferd_kernels.reference.attention import attention, gather_blocks
from inferd_kernels.triton.attn_span import LOG2E, attend_span, find_sequence
from inferd_kernels.triton.tiling import Tiles, tiles_for


class KVCache(NamedTuple):
    """One layer's planes [blocks, page, kv_heads, head_dim]; the 8-bit formats have a scale a token and head."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None  # [blocks, page, kv_heads, 1] float32
    v_scale: torch.Tensor | None = None

    @property
    def page(self) -> int:
        return self.k.shape[1]


class Ragged(NamedTuple):
    """Sequences of a batch; `first` skips those that another launch serves."""

    cu_seqlens: torch.Tensor  # [B + 1] int32 query offsets
    context_lens: torch.Tensor  # [B] int32 keys, this step's included
    block_tables: torch.Tensor  # [B, M] int32, rows contiguous
    first: int
    num_seqs: int
    """Of this launch."""
    num_tokens: int
    """Of this launch, at least."""


class Scores(NamedTuple):
    """How scores are made of q.k."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [heads]


def constants(q: torch.Tensor, kv: KVCache, scores: Scores) -> dict[str, int]:
    """Return the constants that both attention kernels are compiled with."""
    return {
        "HEADS": q.shape[1],
        "KV_HEADS": kv.k.shape[2],
        "HEAD_DIM": q.shape[2],
        "BLOCK_D": max(16, triton.next_power_of_2(q.shape[2])),
        "PAGE": kv.page,
        "WINDOW": scores.window or 0,
        "SOFTCAP": scores.softcap is not None,
        "SINKS": scores.sinks is not None,
        "SCALED": kv.k_scale is not None,
    }


def boxes_of(kv: KVCache, tile: int) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Describe tiles of one head's keys and values to the tensor memory accelerator; None where pages are smaller."""
    blocks, page, kv_heads, width = kv.k.shape
    if page % tile or width != triton.next_power_of_2(width):
        return None, None
    shape = [blocks * page, kv_heads * width]
    k, v = (TensorDescriptor(plane, shape, [plane.stride(1), 1], [tile, width]) for plane in kv[:2])
    return k, v


def attend_reference(q: torch.Tensor, kv: KVCache, batch: Ragged, scores: Scores) -> torch.Tensor:
    """Return what `attn_prefill` and `attn_decode` compute, [T, heads, head_dim], by plain torch."""
    out = torch.zeros_like(q)
    for b in range(batch.first, batch.first + batch.num_seqs):
        rows = slice(int(batch.cu_seqlens[b]), int(batch.cu_seqlens[b + 1]))
        if rows.stop == rows.start:
            continue
        table, context = batch.block_tables[b], int(batch.context_lens[b])
        planes = [gather_blocks(plane, table, context).float() for plane in (kv.k, kv.v)]
        for plane, scale in zip(planes, (kv.k_scale, kv.v_scale), strict=True):
            if scale is not None:
                plane.mul_(gather_blocks(scale, table, context))
        out[rows] = attention(
            q[rows],
            *planes,
            scale=scores.scale,
            window=scores.window,
            softcap=scores.softcap,
            sinks=scores.sinks,
        )
    return out


@triton.jit(
    do_not_specialize=["i_first_seq", "num_seqs"],
    do_not_specialize_on_alignment=["p_cu_seqlens", "p_context_lens", "p_tables"],
)
def attn_prefill_kernel(
    p_q,
    p_k,
    p_v,
    p_k_scale,
    p_v_scale,
    d_k,
    d_v,
    p_sinks,
    p_out,
    p_lse,
    p_cu_seqlens,
    p_context_lens,
    p_tables,
    i_first_seq,
    num_seqs,
    q_stride,
    out_stride,
    slot_stride,
    table_stride,
    scale,
    cap,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    LSE: tl.constexpr,
    TMA: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    i_kv_head = tl.program_id(0)
    i_item = tl.num_programs(1) - 1 - tl.program_id(1)
    p_starts = p_cu_seqlens + i_first_seq
    i_seq = find_sequence(p_starts, i_item, num_seqs, tl.load(p_starts), 1, BLOCK_Q)
    i_token = tl.load(p_starts + i_seq)
    i_rows = i_item - ((i_token - tl.load(p_starts)) // BLOCK_Q + i_seq)  # tile of this sequence
    num_rows = tl.load(p_starts + i_seq + 1) - i_token
    if i_rows * BLOCK_Q >= num_rows:
        return
    num_keys = tl.load(p_context_lens + i_first_seq + i_seq)

    o_m = tl.arange(0, BLOCK_M)
    o_row = i_rows * BLOCK_Q + o_m // GROUP
    mask_m = (o_m < BLOCK_Q * GROUP) & (o_row < num_rows)
    o_head = i_kv_head * GROUP + o_m % GROUP
    o_d = tl.arange(0, BLOCK_D)
    mask_q = mask_m[:, None] & (o_d < HEAD_DIM)[None, :]
    o_token = (i_token + o_row).to(tl.int64)
    o_q = o_token[:, None] * q_stride + o_head[:, None] * HEAD_DIM + o_d[None, :]
    b_q = tl.load(p_q + o_q, mask=mask_q, other=0.0)

    i_first_position = num_keys - num_rows + i_rows * BLOCK_Q
    i_last_position = tl.minimum(i_first_position + BLOCK_Q, num_keys) - 1
    o_positions = tl.minimum(num_keys - num_rows + o_row, i_last_position)
    i_low = 0
    if WINDOW > 0:
        i_low = tl.maximum(i_first_position - WINDOW + 1, 0)
    if SINKS:
        b_max = tl.load(p_sinks + o_head, mask=mask_m, other=0.0).to(tl.float32) * 1.4426950408889634
        b_sum = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    else:
        b_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    b_acc, b_max, b_sum = attend_span(
        b_q, b_max, b_sum, p_k, p_v, p_k_scale, p_v_scale, d_k, d_v,
        p_tables + (i_first_seq + i_seq).to(tl.int64) * table_stride,
        i_kv_head, i_low, i_last_position + 1, i_first_position, i_last_position, o_positions, slot_stride, scale, cap,
        KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_M, TILE, PAGE, WINDOW, SOFTCAP, SCALED, TMA,
    )  # fmt: skip
    b_out = b_acc / b_sum[:, None]
    o_out = o_token[:, None] * out_stride + o_head[:, None] * HEAD_DIM + o_d[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=mask_q)
    if LSE:
        b_lse = (b_max + tl.log2(b_sum)) * 0.6931471805599453
        tl.store(p_lse + o_token * HEADS + o_head, b_lse, mask=mask_m)


def attn_prefill(
    q: torch.Tensor,
    kv: KVCache,
    batch: Ragged,
    scores: Scores,
    out: torch.Tensor,
    *,
    lse: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> None:
    """Write the attention of the rows of `batch` into `out`, [T, heads, head_dim] as q.

    `lse` [T, heads] float32 takes the log of each softmax's denominator, sinks included. `TMA` in the tiles reads
    whole tiles by the tensor memory accelerator where pages hold them.
    """
    heads, width = q.shape[1:]
    kv_heads, group = kv.k.shape[2], heads // kv.k.shape[2]
    # float32 is multiplied outside the matrix units: large tiles would spill, and take a minute to compile
    case = "fp32" if q.dtype == torch.float32 else f"hd{width}"
    chosen = dict(tiles or tiles_for("attn_prefill", case, q.device))
    chosen["BLOCK_M"] = max(chosen["BLOCK_M"], triton.next_power_of_2(group))
    boxes = boxes_of(kv, chosen["TILE"]) if chosen.pop("TMA", 0) else (None, None)
    num_items = batch.num_tokens // (chosen["BLOCK_M"] // group) + batch.num_seqs
    attn_prefill_kernel[(kv_heads, num_items)](
        q,
        kv.k,
        kv.v,
        kv.k_scale,
        kv.v_scale,
        *boxes,
        scores.sinks,
        out,
        lse,
        batch.cu_seqlens,
        batch.context_lens,
        batch.block_tables,
        batch.first,
        batch.num_seqs,
        q.stride(0),
        out.stride(0),
        kv.k.stride(1),
        batch.block_tables.stride(0),
        scores.scale * LOG2E,
        (scores.softcap or 0.0) * LOG2E,
        LSE=lse is not None,
        TMA=boxes[0] is not None,
        **constants(q, kv, scores),
        **chosen,
    )
