"""Order-preserving integer keys of floats, and the search for thresholds over them.

A float's key compares as the float does, so a threshold is found exactly in a fixed number of halvings, whatever
the values. Four-way steps: three pivots a pass over the row settle two bits, sixteen passes all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferd_kernels.triton.noise import fixed_weight


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
def scaled(p_row, o_v, num_columns, temperature):
    """Return logits over the temperature, -inf past the row; one IEEE division, and no -0, as 0 is its equal."""
    b_x = tl.load(p_row + o_v, mask=o_v < num_columns, other=float("-inf"))
    return tl.div_rn(b_x, temperature) + 0.0


@triton.jit
def weights(b_x, b_key, o_v, i_floor, num_columns, top, MASS: tl.constexpr):
    """Return what each value counts for: 1 (MASS: its probability mass), or 0 below the key `i_floor`."""
    kept = (b_key >= i_floor) & (o_v < num_columns)
    if MASS:
        return tl.where(kept, fixed_weight(b_x, top), 0)
    else:
        return kept.to(tl.int32)


@triton.jit
def weigh(p_row, num_columns, i_low, i_mid, i_high, i_floor, temperature, top, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Return, for three pivots, how many values (MASS: what probability mass) lie at or above each.

    Values below the key `i_floor` do not count. Whole numbers: the sums depend on no order.
    """
    DTYPE: tl.constexpr = tl.int64 if MASS else tl.int32
    b_low = tl.zeros([BLOCK], dtype=DTYPE)
    b_mid = tl.zeros([BLOCK], dtype=DTYPE)
    b_high = tl.zeros([BLOCK], dtype=DTYPE)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = scaled(p_row, o_v, num_columns, temperature)
        b_key = key_of(b_x)
        b_weight = weights(b_x, b_key, o_v, i_floor, num_columns, top, MASS)
        b_low += tl.where(b_key >= i_low, b_weight, 0)
        b_mid += tl.where(b_key >= i_mid, b_weight, 0)
        b_high += tl.where(b_key >= i_high, b_weight, 0)
    return tl.sum(b_low, 0).to(tl.int64), tl.sum(b_mid, 0).to(tl.int64), tl.sum(b_high, 0).to(tl.int64)


@triton.jit
def mass_from(p_row, num_columns, i_first_key, i_floor, temperature, top, BLOCK: tl.constexpr):
    """Return the probability mass of the values whose keys reach both `i_first_key` and `i_floor`."""
    b_mass = tl.zeros([BLOCK], dtype=tl.int64)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = scaled(p_row, o_v, num_columns, temperature)
        b_key = key_of(b_x)
        b_weight = weights(b_x, b_key, o_v, i_floor, num_columns, top, True)
        b_mass += tl.where(b_key >= i_first_key, b_weight, 0)
    return tl.sum(b_mass, 0)


@triton.jit
def search(p_row, num_columns, i_floor, i_top, wanted, temperature, top, MASS: tl.constexpr, BLOCK: tl.constexpr):
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
            p_row, num_columns, i_low.to(tl.int32), i_mid.to(tl.int32), i_high.to(tl.int32), i_floor, temperature,
            top, MASS, BLOCK,
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
