"""Rotary tables, made once per loaded model from its configured context.

Scalings that Hugging Face grows with the sequence (dynamic, longrope) are fixed here at the context the
engine was loaded with, so that keys already in the cache never change their meaning. Arithmetic is
float32 in the order of `transformers.modeling_rope_utils`, whose tables these must equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from inferd.plugin.types import RopeSpec


class RopeTable(NamedTuple):
    cos: torch.Tensor  # [context, dim], both halves equal
    sin: torch.Tensor


class Frequencies(NamedTuple):
    values: torch.Tensor  # [dim / 2], radians a position
    scale: float
    """Multiplier of cos and sin (YaRN's attention factor)."""


def rope_table(rope: RopeSpec, context: int, trained_context: int, device: str = "cpu") -> RopeTable:
    """Return cos and sin for positions 0 to context - 1."""
    frequencies = rope_frequencies(rope, context, trained_context)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies.values)
    angles = torch.cat((angles, angles), dim=-1)
    return RopeTable(
        (angles.cos() * frequencies.scale).to(device),
        (angles.sin() * frequencies.scale).to(device),
    )


def rope_frequencies(rope: RopeSpec, context: int, trained_context: int) -> Frequencies:
    """Return the frequencies of one rope kind. Raises ValueError for a kind or a size that does not fit."""
    if rope.kind not in _KINDS:
        raise ValueError(f"rope kind {rope.kind!r} is unknown; known: {', '.join(_KINDS)}")
    values, scale = _KINDS[rope.kind](rope, context, trained_context)
    if rope.freq_factors is not None:
        values = values / _per_channel(rope, "freq_factors", rope.freq_factors)
    return Frequencies(values, scale)


def _base_frequencies(rope: RopeSpec, theta: float | None = None) -> torch.Tensor:
    return 1.0 / ((theta or rope.theta) ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim))


def _default(rope: RopeSpec, context: int, trained_context: int) -> tuple[torch.Tensor, float]:
    return _base_frequencies(rope), 1.0


def _linear(rope: RopeSpec, context: int, trained_context: int) -> tuple[torch.Tensor, float]:
    return _base_frequencies(rope) / rope.factor, 1.0


def _dynamic(rope: RopeSpec, context: int, trained_context: int) -> tuple[torch.Tensor, float]:
    """NTK scaling: the base grows with the context, once that exceeds the trained one."""
    trained = rope.original_context or trained_context
    growth = rope.factor * max(context, trained) / trained - (rope.factor - 1)
    return _base_frequencies(rope, rope.theta * growth ** (rope.dim / (rope.dim - 2))), 1.0


def _yarn(rope: RopeSpec, context: int, trained_context: int) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023): slow channels interpolated, fast ones kept, a ramp between them."""
    original = rope.original_context or trained_context
    low = _yarn_channel(rope, rope.beta_fast, original)
    high = _yarn_channel(rope, rope.beta_slow, original)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    base = _base_frequencies(rope)
    return 1.0 / (rope.factor * (1.0 / base)) * (1 - kept) + base * kept, _yarn_scale(rope)


def _yarn_channel(rope: RopeSpec, turns: float, original: int) -> float:
    """Channel that makes `turns` turns over the original context."""
    return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_scale(rope: RopeSpec) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def _llama3(rope: RopeSpec, context: int, trained_context: int) -> tuple[torch.Tensor, float]:
    """Llama 3.1: long wavelengths divided by the factor, short ones kept, a blend between them."""
    original = rope.original_context or trained_context
    base = _base_frequencies(rope)
    wavelength = 2 * math.pi / base
    longest, shortest = original / rope.low_freq_factor, original / rope.high_freq_factor
    scaled = torch.where(wavelength > longest, base / rope.factor, base)
    blend = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (wavelength <= longest) & (wavelength >= shortest)
    return torch.where(between, (1 - blend) * scaled / rope.factor + blend * scaled, scaled), 1.0


def _longrope(rope: RopeSpec, context: int, trained_context: int) -> tuple[torch.Tensor, float]:
    """LongRoPE (Ding et al. 2024): one divisor a channel, long or short by the configured context."""
    original = rope.original_context or trained_context
    name = "long_factor" if context > original else "short_factor"
    factors = _per_channel(rope, name, getattr(rope, name))
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    scale = rope.attention_factor
    if scale is None:
        scale = 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(original))
    return 1.0 / (factors * rope.theta**exponents), scale


def _per_channel(rope: RopeSpec, name: str, factors: tuple[float, ...] | None) -> torch.Tensor:
    if factors is None or len(factors) != rope.dim // 2:
        found = "none" if factors is None else len(factors)
        raise ValueError(f"rope {name}: expected {rope.dim // 2} numbers for {rope.dim} channels, found {found}")
    return torch.tensor(factors, dtype=torch.float32)


_KINDS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
