"""Counter-based Gumbel noise: g = hash(seed, position, token id), with no state to advance.

A token's noise depends on nothing but these three numbers, so a row is sampled alike whatever runs
beside it and however often it is computed. The mixers are splitmix64 (Steele, Lea, Flood 2014) on the
host for (seed, position), and two keyed rounds of the 32-bit murmur3 finaliser per token.

Logarithms and weights are single IEEE operations in a fixed order, never a library's transcendental: torch on any
device and the native kernel (`noise.h`) give the same bits, so the same tokens.
"""

from __future__ import annotations

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_FMIX1 = 0x85EBCA6B - (1 << 32)
_FMIX2 = 0xC2B2AE35 - (1 << 32)
_TOKEN_STEP = 0x9E3779B1 - (1 << 32)
"""Odd, so that token ids stay distinct."""
_BELOW_ONE = 1.0 - 2.0**-24
_LN = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP2 = (
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)
_LOG2E = 1.44269504


def row_keys(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return int32 keys [R, 2] from seeds int64 [R] and absolute positions [R] of the tokens to choose."""
    with np.errstate(over="ignore"):
        mixed = _splitmix(_splitmix(seeds.astype(np.uint64)) + positions.astype(np.uint64) * _GOLDEN)
    return mixed.view(np.int32).reshape(-1, 2)


def gumbel(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return float32 noise [R, N] of keys int32 [R, 2] and token ids int32 [N] or [R, N].

    31 random bits make u in (0, 1), kept exact near 0 where the largest noise comes from.
    """
    mixed = _finalise((tokens * _TOKEN_STEP) ^ keys[:, :1])
    mixed = _finalise(mixed.add_(keys[:, 1:]))
    u = mixed.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)
    w = 1 - u
    exponent = _exponent(w)
    exponential = _ln(torch.where(exponent == 0, u.neg_(), _rest(w, exponent)), exponent).neg_()  # -ln(1 - u)
    exponent = _exponent(exponential)
    return _ln(_rest(exponential, exponent), exponent).neg_()


def fixed_weights(logits: torch.Tensor) -> torch.Tensor:
    """Return e^(x - max) of logits [R, N] as whole numbers of 2^-40, int64: their sums do not depend on the order."""
    x = (logits - logits.amax(-1, keepdim=True)).mul_(_LOG2E).clamp_(min=-126.0)
    whole = x.round()
    part = x.sub_(whole)
    y = torch.full_like(part, _EXP2[0])
    for factor in _EXP2[1:]:
        y.mul_(part).add_(factor)
    scale = ((whole.to(torch.int32) + 127) << 23).view(torch.float32)
    return y.mul_(scale).mul_(2.0**40).to(torch.int64)


def _exponent(x: torch.Tensor) -> torch.Tensor:
    """Return e of x = m 2^e with m in [sqrt(1/2), sqrt(2)), for normal x > 0."""
    return (x.view(torch.int32) - 0x3F3504F3) >> 23


def _rest(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Return m - 1."""
    return (x.view(torch.int32) - (exponent << 23)).view(torch.float32) - 1


def _ln(t: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Return ln((1 + t) 2^e), by the polynomial of Cephes' logf."""
    z, e = t * t, exponent.float()
    y = torch.full_like(t, _LN[0])
    for factor in _LN[1:]:
        y.mul_(t).add_(factor)
    y.mul_(t).mul_(z).add_(e * _LN2_LOW).add_(z.mul_(-0.5))
    return y.add_(t).add_(e.mul_(_LN2_HIGH))


def _splitmix(x: np.ndarray) -> np.ndarray:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def _finalise(x: torch.Tensor) -> torch.Tensor:
    """murmur3's fmix32 on int32, in place; the masks make the shifts logical."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_FMIX1)
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_FMIX2)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
