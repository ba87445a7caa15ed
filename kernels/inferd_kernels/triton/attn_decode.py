"""Attention of few query rows a sequence (FlashDecoding: the keys are split among programs, then merged).

A split is a fixed run of `split` key positions, aligned to position 0: how a sequence is cut depends on nothing
but its own length, so its output does not depend on the batch. `plan_splits` counts the splits of every sequence
on the device, which makes the launches fit for a CUDA graph: their grids do not depend on the lengths.

    out = sum_i 2^(lse_i - m) out_i / sum_i 2^(lse_i - m),  m = max_i lse_i          (attn_merge)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, constants
from inferd_kernels.triton.attn_span import LOG2E, attend_span, find_sequence
from inferd_kernels.triton.tiling import Tiles, num_processors, tiles_for

MAX_ROWS = 16
"""Most query rows of a sequence."""
MAX_BLOCK_M = 64
"""Most (row, head) pairs of a tile, where the tiles of a device do not say otherwise."""


class Splits(NamedTuple):
    """How the keys of a batch are split, on the device."""

    offsets: torch.Tensor  # [B + 1] int32: work items before each sequence
    split: int
    max_splits: int
    """Of one sequence."""


def split_of(q: torch.Tensor, kv: KVCache) -> int:
    """Return the keys of a split: one number for all batches of a model on a device."""
    return _tiles(q, kv)["SPLIT"]


def _tiles(q: torch.Tensor, kv: KVCache) -> Tiles:
    return tiles_for("attn_decode", case_of(q, kv), q.device)


def case_of(q: torch.Tensor, kv: KVCache) -> str:
    """Return the tile case: float32 is multiplied outside the matrix units, where larger tiles spill."""
    if q.dtype == torch.float32:
        return "fp32"
    return f"hd{q.shape[2]}" if kv.k_scale is None else f"hd{q.shape[2]}-8bit"


@triton.jit(do_not_specialize=["i_first_seq", "num_seqs"], do_not_specialize_on_alignment=["p_cu_seqlens", "p_lens"])
def plan_splits_kernel(
    p_cu_seqlens,
    p_lens,
    p_offsets,
    i_first_seq,
    num_seqs,
    BLOCK_B: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
):
    o_b = tl.arange(0, BLOCK_B)
    mask_b = o_b < num_seqs
    b_start = tl.load(p_cu_seqlens + i_first_seq + o_b, mask=mask_b, other=0)
    b_rows = tl.load(p_cu_seqlens + i_first_seq + o_b + 1, mask=mask_b, other=0) - b_start
    b_keys = tl.load(p_lens + i_first_seq + o_b, mask=mask_b, other=0)
    b_low = tl.zeros([BLOCK_B], dtype=tl.int32)
    if WINDOW > 0:
        b_low = tl.maximum(b_keys - b_rows - WINDOW + 1, 0)
    b_count = tl.where(b_rows > 0, tl.cdiv(b_keys, SPLIT) - b_low // SPLIT, 0)
    tl.store(p_offsets + o_b + 1, tl.cumsum(b_count, 0), mask=mask_b)
    tl.store(p_offsets + o_b, tl.zeros([BLOCK_B], dtype=tl.int32), mask=o_b < 1)


def plan_splits(
    batch: Ragged, offsets: torch.Tensor, *, split: int, max_context: int, window: int | None = None
) -> Splits:
    """Count the splits of each sequence into `offsets` [B + 1] int32; nothing is read back."""
    plan_splits_kernel[(1,)](
        batch.cu_seqlens,
        batch.context_lens,
        offsets,
        batch.first,
        batch.num_seqs,
        BLOCK_B=triton.next_power_of_2(batch.num_seqs),
        SPLIT=split,
        WINDOW=window or 0,
    )
    reach = max_context if window is None else min(max_context, window + MAX_ROWS + split)
    return Splits(offsets, split, triton.cdiv(reach, split))


@triton.jit(
    do_not_specialize=["i_first_seq", "num_seqs"],
    do_not_specialize_on_alignment=["p_cu_seqlens", "p_context_lens", "p_tables"],
)
def attn_decode_kernel(
    p_q,
    p_k,
    p_v,
    p_k_scale,
    p_v_scale,
    p_sinks,
    p_part,
    p_lse,
    p_offsets,
    p_cu_seqlens,
    p_context_lens,
    p_tables,
    i_first_seq,
    num_seqs,
    q_stride,
    slot_stride,
    table_stride,
    scale,
    cap,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """One program takes every num_programs-th piece of work: (split, KV head, tile of rows)."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    M_TILES: tl.constexpr = (ROWS * GROUP + BLOCK_M - 1) // BLOCK_M
    num_work = tl.load(p_offsets + num_seqs) * (KV_HEADS * M_TILES)
    for i_work in range(tl.program_id(0), num_work, tl.num_programs(0)):
        i_item = i_work // (KV_HEADS * M_TILES)
        i_kv_head = (i_work // M_TILES) % KV_HEADS
        i_seq = find_sequence(p_offsets, i_item, num_seqs, 0, 0, 1)
        p_seq = p_cu_seqlens + i_first_seq + i_seq
        i_token = tl.load(p_seq)
        num_rows = tl.load(p_seq + 1) - i_token
        num_keys = tl.load(p_context_lens + i_first_seq + i_seq)

        o_m = (i_work % M_TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
        o_row = o_m // GROUP
        mask_m = o_row < tl.minimum(num_rows, ROWS)  # scratch has no place for more
        o_head = i_kv_head * GROUP + o_m % GROUP
        o_d = tl.arange(0, BLOCK_D)
        mask_q = mask_m[:, None] & (o_d < HEAD_DIM)[None, :]
        o_token = (i_token + o_row).to(tl.int64)
        b_q = tl.load(
            p_q + o_token[:, None] * q_stride + o_head[:, None] * HEAD_DIM + o_d[None, :], mask=mask_q, other=0.0
        )

        i_first_position = num_keys - num_rows
        o_positions = i_first_position + tl.minimum(o_row, num_rows - 1)
        i_low = 0
        if WINDOW > 0:
            i_low = tl.maximum(i_first_position - WINDOW + 1, 0)
        i_nth = i_item - tl.load(p_offsets + i_seq)
        i_split = (i_low // SPLIT + i_nth) * SPLIT
        b_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
        if SINKS:
            b_sink = tl.load(p_sinks + o_head, mask=mask_m, other=0.0).to(tl.float32) * 1.4426950408889634
            b_max = tl.where(i_nth == 0, b_sink, b_max)
            b_sum = tl.where(i_nth == 0, 1.0, b_sum)
        b_acc, b_max, b_sum = attend_span(
            b_q, b_max, b_sum, p_k, p_v, p_k_scale, p_v_scale, None, None,
            p_tables + (i_first_seq + i_seq).to(tl.int64) * table_stride, i_kv_head,
            tl.maximum(i_split, i_low), tl.minimum(i_split + SPLIT, num_keys), i_first_position, num_keys - 1,
            o_positions, slot_stride, scale, cap,
            KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_M, TILE, PAGE, WINDOW, SOFTCAP, SCALED, False,
        )  # fmt: skip
        # A row may see nothing of this split: its weight in the merge is then 2^-inf.
        b_out = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
        b_lse = tl.where(b_sum > 0, b_max + tl.log2(tl.where(b_sum > 0, b_sum, 1.0)), float("-inf"))
        o_part = i_item.to(tl.int64) * (ROWS * HEADS) + o_row * HEADS + o_head
        tl.store(p_part + o_part[:, None] * HEAD_DIM + o_d[None, :], b_out, mask=mask_q)
        tl.store(p_lse + o_part, b_lse, mask=mask_m)


@triton.jit(do_not_specialize=["i_first_seq", "num_seqs", "i_first_token"], do_not_specialize_on_alignment=["p_starts"])
def attn_merge_kernel(
    p_part,
    p_lse,
    p_out,
    p_offsets,
    p_starts,
    i_first_seq,
    num_seqs,
    i_first_token,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    i_token = i_first_token + tl.program_id(0)
    i_head = tl.program_id(1)
    p_first = p_starts + i_first_seq
    if i_token >= tl.load(p_first + num_seqs):
        return
    i_seq = find_sequence(p_first, i_token, num_seqs, 0, 0, 1)
    i_row = i_token - tl.load(p_first + i_seq)
    i_item = tl.load(p_offsets + i_seq).to(tl.int64)
    num_splits = tl.load(p_offsets + i_seq + 1) - i_item.to(tl.int32)

    o_all = tl.arange(0, MAX_SPLITS)
    o_part = i_item * (ROWS * HEADS) + i_row * HEADS + i_head
    b_all = tl.load(p_lse + o_part + o_all * (ROWS * HEADS), mask=o_all < num_splits, other=float("-inf"))
    b_top = tl.max(b_all, 0)
    o_d = tl.arange(0, BLOCK_D)
    b_out = tl.zeros([BLOCK_D], dtype=tl.float32)
    for i_first in range(0, num_splits, BLOCK_S):
        o_s = i_first + tl.arange(0, BLOCK_S)
        mask_s = o_s < num_splits
        b_lse = tl.load(p_lse + o_part + o_s * (ROWS * HEADS), mask=mask_s, other=float("-inf"))
        o_rows = (o_part + o_s.to(tl.int64) * (ROWS * HEADS)) * HEAD_DIM
        b_part = tl.load(
            p_part + o_rows[:, None] + o_d[None, :], mask=mask_s[:, None] & (o_d < HEAD_DIM)[None, :], other=0.0
        )
        b_out += tl.sum(b_part * tl.exp2(b_lse - b_top)[:, None], 0)
    b_out /= tl.sum(tl.exp2(b_all - b_top), 0)
    o_out = i_token.to(tl.int64) * out_stride + i_head * HEAD_DIM + o_d
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=o_d < HEAD_DIM)


def scratch_shapes(
    num_seqs: int, max_splits: int, rows: int, heads: int, width: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the partial outputs and of their log-sum-exps, both float32."""
    return (num_seqs * max_splits, rows, heads, width), (num_seqs * max_splits, rows, heads)


def attn_decode(
    q: torch.Tensor,
    kv: KVCache,
    batch: Ragged,
    scores: Scores,
    splits: Splits,
    scratch: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    *,
    rows: int,
    first_token: int = 0,
    tiles: Tiles | None = None,
) -> None:
    """Write the attention of `batch`, at most `rows` query rows a sequence, into `out` [T, heads, head_dim].

    `scratch` has at least the sizes of `scratch_shapes`. Rows past the last sequence are left alone.
    """
    heads, width = q.shape[1:]
    kv_heads, group = kv.k.shape[2], heads // kv.k.shape[2]
    chosen = dict(tiles or _tiles(q, kv)) | {"SPLIT": splits.split}
    programs = chosen.pop("PROGRAMS") * num_processors(q.device)
    block_m = min(chosen.pop("BLOCK_M", MAX_BLOCK_M), max(16, triton.next_power_of_2(rows * group)))
    part, lse = scratch
    fixed = constants(q, kv, scores)
    block_d = fixed["BLOCK_D"]
    m_tiles = triton.cdiv(rows * group, block_m)
    attn_decode_kernel[(min(programs, batch.num_seqs * splits.max_splits * kv_heads * m_tiles),)](
        q,
        kv.k,
        kv.v,
        kv.k_scale,
        kv.v_scale,
        scores.sinks,
        part,
        lse,
        splits.offsets,
        batch.cu_seqlens,
        batch.context_lens,
        batch.block_tables,
        batch.first,
        batch.num_seqs,
        q.stride(0),
        kv.k.stride(1),
        batch.block_tables.stride(0),
        scores.scale * LOG2E,
        (scores.softcap or 0.0) * LOG2E,
        BLOCK_M=block_m,
        ROWS=rows,
        **fixed,
        **chosen,
    )
    attn_merge_kernel[(batch.num_tokens, heads)](
        part,
        lse,
        out,
        splits.offsets,
        batch.cu_seqlens,
        batch.first,
        batch.num_seqs,
        first_token,
        out.stride(0),
        HEADS=heads,
        HEAD_DIM=width,
        BLOCK_D=block_d,
        ROWS=rows,
        MAX_SPLITS=triton.next_power_of_2(splits.max_splits),
        BLOCK_S=min(8, triton.next_power_of_2(splits.max_splits)),
        num_warps=1 if block_d <= 64 else 2,
    )
