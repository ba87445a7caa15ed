"""Counter-based Gumbel noise: g = hash(seed, position, token id), with no state to advance.

A token's noise depends on nothing but these three numbers, so a row is sampled alike whatever runs
beside it and however often it is computed. The mixers are splitmix64 (Steele, Lea, Flood 2014) on the
host for (seed, position), and two keyed rounds of the 32-bit murmur3 finaliser per token.
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
    uniform = mixed.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


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
