"""The inner loop of both attention kernels: queries of one KV head over a span of paged keys.

    s = scale q k^T, capped and masked;  m' = max(m, max s);  acc' = acc 2^(m - m') + 2^(s - m') v

Online softmax in base 2 (Milakov and Gimelshein 2018; FlashAttention, Dao 2022). Tiles that every query sees
whole take a loop without masks. A key that no query of the tile may see is never read.

With TMA the tiles of that loop are copied by the tensor memory accelerator (sm_90 and newer), one box of one page each.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit
def page_slots(p_table, i_start, o_keys, mask_keys, PAGE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Return the cache slots of a tile of keys: one look-up where a page holds the tile, else one a key."""
    if TILE <= PAGE:
        i_page = tl.load(p_table + i_start // PAGE).to(tl.int64)
        return i_page * PAGE + o_keys % PAGE
    if MASKED:
        b_pages = tl.load(p_table + o_keys // PAGE, mask=mask_keys, other=0).to(tl.int64)
    else:
        b_pages = tl.load(p_table + o_keys // PAGE).to(tl.int64)
    return b_pages * PAGE + o_keys % PAGE


@triton.jit
def cap_scores(b_s, cap):
    """Return cap tanh(s / cap), s in base 2 as is the result."""
    return cap * (2.0 / (1.0 + tl.exp2(-2.8853900817779268 * (b_s / cap))) - 1.0)


@triton.jit
def attend_tiles(
    b_q,
    b_acc,
    b_max,
    b_sum,
    p_k,
    p_v,
    p_k_scale,
    p_v_scale,
    d_k,
    d_v,
    p_table,
    i_kv_head,
    i_first,
    i_end,
    i_low,
    i_high,
    o_positions,
    slot_stride,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    MASKED: tl.constexpr,
    TMA: tl.constexpr,
):
    """Attend over the tiles of [i_first, i_end); keys outside [i_low, i_high) are not read."""
    o_d = tl.arange(0, BLOCK_D)
    mask_d = o_d < HEAD_DIM
    for i_start in tl.range(i_first, i_end, TILE):
        o_keys = i_start + tl.arange(0, TILE)
        mask_keys = (o_keys >= i_low) & (o_keys < i_high)
        o_slots = page_slots(p_table, i_start, o_keys, mask_keys, PAGE, TILE, MASKED)
        o_rows = o_slots[:, None] * slot_stride + i_kv_head * HEAD_DIM + o_d[None, :]
        i_slot = 0
        if TMA and not MASKED:
            i_slot = tl.load(p_table + i_start // PAGE) * PAGE + i_start % PAGE
            b_k = d_k.load([i_slot, i_kv_head * HEAD_DIM])
        elif MASKED:
            b_k = tl.load(p_k + o_rows, mask=mask_keys[:, None] & mask_d[None, :], other=0.0)
        elif BLOCK_D == HEAD_DIM:
            b_k = tl.load(p_k + o_rows)
        else:
            b_k = tl.load(p_k + o_rows, mask=mask_d[None, :], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k.to(b_q.dtype)), input_precision="ieee") * scale
        if SCALED:
            b_s *= tl.load(p_k_scale + o_slots * KV_HEADS + i_kv_head, mask=mask_keys, other=0.0)[None, :]
        if SOFTCAP:
            b_s = cap_scores(b_s, cap)
        if MASKED:
            seen = mask_keys[None, :] & (o_keys[None, :] <= o_positions[:, None])
            if WINDOW > 0:
                seen &= o_keys[None, :] > o_positions[:, None] - WINDOW
            b_s = tl.where(seen, b_s, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 1))
        b_base = b_new
        if MASKED:
            b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_p = tl.exp2(b_s - b_base[:, None])
        b_decay = tl.exp2(b_max - b_base)
        b_sum = b_sum * b_decay + tl.sum(b_p, 1)
        if SCALED:
            b_p *= tl.load(p_v_scale + o_slots * KV_HEADS + i_kv_head, mask=mask_keys, other=0.0)[None, :]
        if TMA and not MASKED:
            b_v = d_v.load([i_slot, i_kv_head * HEAD_DIM])
        elif MASKED:
            b_v = tl.load(p_v + o_rows, mask=mask_keys[:, None] & mask_d[None, :], other=0.0)
        elif BLOCK_D == HEAD_DIM:
            b_v = tl.load(p_v + o_rows)
        else:
            b_v = tl.load(p_v + o_rows, mask=mask_d[None, :], other=0.0)
        b_acc = b_acc * b_decay[:, None]
        b_acc = tl.dot(b_p.to(b_q.dtype), b_v.to(b_q.dtype), b_acc, input_precision="ieee")
        b_max = b_new
    return b_acc, b_max, b_sum


@triton.jit
def attend_span(
    b_q,
    b_max,
    b_sum,
    p_k,
    p_v,
    p_k_scale,
    p_v_scale,
    d_k,
    d_v,
    p_table,
    i_kv_head,
    i_low,
    i_high,
    i_first_position,
    i_last_position,
    o_positions,
    slot_stride,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    TMA: tl.constexpr,
):
    """Attend over the keys [i_low, i_high) of one sequence.

    Queries stand at `o_positions` within [i_first_position, i_last_position]. Returns (acc, max, sum), scores in
    base 2; acc is not yet divided by sum.
    """
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    i_begin = (i_low // TILE) * TILE
    i_full_end = tl.minimum(((i_first_position + 1) // TILE) * TILE, (i_high // TILE) * TILE)
    i_full = i_begin
    if WINDOW > 0:
        i_full = tl.maximum(i_full, tl.cdiv(tl.maximum(i_last_position - WINDOW + 1, 0), TILE) * TILE)
        i_full = tl.minimum(i_full, tl.cdiv(i_high, TILE) * TILE)
        b_acc, b_max, b_sum = attend_tiles(
            b_q, b_acc, b_max, b_sum, p_k, p_v, p_k_scale, p_v_scale, d_k, d_v, p_table,
            i_kv_head, i_begin, i_full, i_low, i_high, o_positions, slot_stride, scale, cap,
            KV_HEADS, HEAD_DIM, BLOCK_D, TILE, PAGE, WINDOW, SOFTCAP, SCALED, True, TMA,
        )  # fmt: skip
    b_acc, b_max, b_sum = attend_tiles(
        b_q, b_acc, b_max, b_sum, p_k, p_v, p_k_scale, p_v_scale, d_k, d_v, p_table,
        i_kv_head, i_full, i_full_end, i_low, i_high, o_positions, slot_stride, scale, cap,
        KV_HEADS, HEAD_DIM, BLOCK_D, TILE, PAGE, WINDOW, SOFTCAP, SCALED, False, TMA,
    )  # fmt: skip
    b_acc, b_max, b_sum = attend_tiles(
        b_q, b_acc, b_max, b_sum, p_k, p_v, p_k_scale, p_v_scale, d_k, d_v, p_table,
        i_kv_head, tl.maximum(i_full, i_full_end), i_high, i_low, i_high, o_positions, slot_stride, scale, cap,
        KV_HEADS, HEAD_DIM, BLOCK_D, TILE, PAGE, WINDOW, SOFTCAP, SCALED, True, TMA,
    )  # fmt: skip
    return b_acc, b_max, b_sum


@triton.jit
def find_sequence(p_starts, i_item, num_seqs, i_base, STEP: tl.constexpr, DIVISOR: tl.constexpr):
    """Return the last s with (starts[s] - i_base) // DIVISOR + s * STEP <= i_item, by bisection."""
    i_left = 0
    i_right = num_seqs
    while i_right - i_left > 1:
        i_mid = (i_left + i_right) // 2
        i_start = (tl.load(p_starts + i_mid) - i_base) // DIVISOR + i_mid * STEP
        i_left = tl.where(i_start <= i_item, i_mid, i_left)
        i_right = tl.where(i_start <= i_item, i_right, i_mid)
    return i_left
