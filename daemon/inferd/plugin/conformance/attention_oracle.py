"""Attention of one whole sequence in float64, written straight from the formulas.

RMSNorm of heads (Zhang and Sennrich 2019), rotary embedding (Su et al. 2021, rotate-half pairing),
grouped-query attention (Ainslie et al. 2023), logit soft cap (Gemma 2), sinks (gpt-oss).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from inferd.plugin.types import AttentionLayer, Gqa, Qkv


class Written(NamedTuple):
    """What a cache should hold, and the query as it is attended with. All float64."""

    q: torch.Tensor  # [T, heads, head_dim]
    k: torch.Tensor  # [T, kv_heads, head_dim]
    v: torch.Tensor  # [T, kv_heads, head_dim]


def rope_table(length: int, dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin [length, dim] float32, both halves equal."""
    cos, sin = torch.empty(length, dim), torch.empty(length, dim)
    for position in range(length):
        for i in range(dim // 2):
            angle = position * theta ** (-2 * i / dim)
            cos[position, i] = cos[position, i + dim // 2] = math.cos(angle)
            sin[position, i] = sin[position, i + dim // 2] = math.sin(angle)
    return cos, sin


def written(layer: AttentionLayer, x: Qkv) -> Written:
    """Norm and rotate the projections of positions 0, 1, 2..."""
    return Written(_head(layer, x.q, layer.q_norm), _head(layer, x.k, layer.k_norm), x.v.double())


def _head(layer: AttentionLayer, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    x = x.double().clone()
    if weight is not None:
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + layer.norm_eps) * weight.double()
    if layer.cos is None or layer.sin is None:
        return x
    half = layer.cos.shape[1] // 2
    cos = layer.cos[: len(x), None, :half].double()
    sin = layer.sin[: len(x), None, :half].double()
    a, b = x[..., :half].clone(), x[..., half : 2 * half].clone()
    x[..., :half] = a * cos - b * sin
    x[..., half : 2 * half] = b * cos + a * sin
    return x


def attended(layer: AttentionLayer, spec: Gqa, w: Written) -> torch.Tensor:
    """Return the output of every position, [T, heads, head_dim]."""
    out = torch.zeros_like(w.q)
    per_kv = spec.heads // spec.kv_heads
    for head in range(spec.heads):
        keys, values = w.k[:, head // per_kv], w.v[:, head // per_kv]
        scores = spec.scale * (w.q[:, head] @ keys.T)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        out[:, head] = _weights(scores, spec.window, _sink(layer, head)) @ values
    return out


def _sink(layer: AttentionLayer, head: int) -> float | None:
    return None if layer.sinks is None else float(layer.sinks[head])


def _weights(scores: torch.Tensor, window: int | None, sink: float | None) -> torch.Tensor:
    """Softmax over what each query may see: itself and earlier keys, less than `window` away."""
    weights = torch.zeros_like(scores)
    for query in range(len(scores)):
        first = 0 if window is None else max(0, query - window + 1)
        seen = scores[query, first : query + 1]
        top = float(seen.max()) if sink is None else max(float(seen.max()), sink)
        exp = torch.exp(seen - top)
        total = exp.sum() + (0.0 if sink is None else math.exp(sink - top))
        weights[query, first : query + 1] = exp / total
    return weights
