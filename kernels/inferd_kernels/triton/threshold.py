"""Order-preserving integer keys of floats, and the search for thresholds over them.

A float's key compares as the float does, so a threshold is found exactly in a fixed number of halvings, whatever
the values. Four-way steps: three pivots a pass over the row settle two bits, sixteen passes all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def key_of(b_x):
    """Return int32 keys of float32 values; equal floats have equal keys, -0 and 0 differ."""
    b_bits = b_x.to(tl.int32, bitcast=True)
    return tl.where(b_bits < 0, b_bits ^ 0x7FFFFFFF, b_bits)


@triton.jit
def value_of(i_key):
    """Return the float32 of a key."""
    i_bits = tl.where(i_key < 0, i_key ^ 0x7FFFFFFF, i_key)
    return i_bits.to(tl.float32, bitcast=True)


@triton.jit
def weigh(p_row, num_columns, i_low, i_mid, i_high, i_floor, scale, top, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Return, for three pivots, how many values (MASS: what probability mass) lie at or above each.

    Values below the key `i_floor` do not count.
    """
    b_low = tl.zeros([BLOCK], dtype=tl.float32)
    b_mid = tl.zeros([BLOCK], dtype=tl.float32)
    b_high = tl.zeros([BLOCK], dtype=tl.float32)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = tl.load(p_row + o_v, mask=o_v < num_columns, other=float("-inf")) * scale
        b_key = key_of(b_x)
        kept = (b_key >= i_floor) & (o_v < num_columns)
        if MASS:
            b_weight = tl.where(kept, tl.exp(b_x - top), 0.0)
        else:
            b_weight = tl.where(kept, 1.0, 0.0)
        b_low += tl.where(b_key >= i_low, b_weight, 0.0)
        b_mid += tl.where(b_key >= i_mid, b_weight, 0.0)
        b_high += tl.where(b_key >= i_high, b_weight, 0.0)
    return tl.sum(b_low, 0), tl.sum(b_mid, 0), tl.sum(b_high, 0)


@triton.jit
def search(p_row, num_columns, i_floor, i_top, wanted, scale, top, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the highest key whose weight (of all values at or above it) reaches `wanted`.

    It lies in [i_floor, i_top]; the weight at i_floor is taken to reach it.
    """
    # int64: the distance between two keys may exceed 31 bits.
    i_left = i_floor.to(tl.int64)
    i_right = i_top.to(tl.int64) + 1
    while i_right - i_left > 1:
        i_step = tl.maximum((i_right - i_left) // 4, 1)
        i_low = i_left + i_step
        i_mid = tl.minimum(i_low + i_step, i_right)
        i_high = tl.minimum(i_mid + i_step, i_right)
        w_low, w_mid, w_high = weigh(
            p_row, num_columns, i_low.to(tl.int32), i_mid.to(tl.int32), i_high.to(tl.int32), i_floor, scale, top,
            MASS, BLOCK,
        )  # fmt: skip
        i_new_left = tl.where(w_low >= wanted, i_low, i_left)
        i_new_left = tl.where((w_mid >= wanted) & (i_mid < i_right), i_mid, i_new_left)
        i_new_left = tl.where((w_high >= wanted) & (i_high < i_right), i_high, i_new_left)
        i_new_right = tl.where(w_high < wanted, i_high, i_right)
        i_new_right = tl.where(w_mid < wanted, i_mid, i_new_right)
        i_new_right = tl.where(w_low < wanted, i_low, i_new_right)
        i_left = i_new_left
        i_right = i_new_right
    return i_left.to(tl.int32)
