"""A second, naive implementation of every ModelSpec in float64, and weights for any spec in memory.

Written for the tests only, one token and one head at a time, so that it shares no idea with the decoder.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from inferd.model.params import parameters
from inferd.model.rope import rope_frequencies
from inferd.plugin.types import Gqa, ModelSpec, RopeSpec, TensorMeta, TensorRule

Weights = Mapping[str, torch.Tensor]


def draw_weights(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Return weights with power for every parameter, by parameter name."""
    out: dict[str, torch.Tensor] = {}
    for name, shape in parameters(spec).items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {shape}".encode()))
        if "norm" in name:
            out[name] = torch.rand(shape, generator=generator) + 0.5 - spec.norm_offset
        elif name.endswith("bias"):
            out[name] = torch.randn(shape, generator=generator) * 0.5
        elif name.endswith("sinks"):
            out[name] = torch.randn(shape, generator=generator) + 1.0
        else:
            scale = 1.0 if name == "embed.weight" and not spec.tied_embeddings else shape[-1] ** -0.5
            out[name] = torch.randn(shape, generator=generator) * scale
    return out


@dataclass(slots=True)
class MemoryCheckpoint:
    """A checkpoint whose tensors have the decoder's own names."""

    weights: dict[str, torch.Tensor]
    path: Path = Path("memory")

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.weights.values())

    def tensors(self) -> dict[str, TensorMeta]:
        return {name: TensorMeta(name, tuple(t.shape), "F32") for name, t in self.weights.items()}

    def read(self, name: str) -> torch.Tensor:
        return self.weights[name]


def own_rules(spec: ModelSpec) -> list[TensorRule]:
    return [TensorRule(name, name) for name in parameters(spec)]


def plain_logits(spec: ModelSpec, weights: Weights, tokens: list[int], context: int) -> torch.Tensor:
    """Return float64 logits [len(tokens), vocab]."""
    w = {name: t.double() for name, t in weights.items()}
    x = [w["embed.weight"][t] * spec.embedding_scale for t in tokens]
    for i, layer in enumerate(spec.layers):
        own = {k.removeprefix(f"layers.{i}."): v for k, v in w.items() if k.startswith(f"layers.{i}.")}
        assert isinstance(layer.attention, Gqa)
        normed = [_norm(v, own["attn_norm.weight"], spec) for v in x]
        x = [a + b for a, b in zip(x, _attention(spec, layer.attention, own, normed, context), strict=True)]
        x = [v + _mlp(own, layer.mlp.activation, _norm(v, own["mlp_norm.weight"], spec)) for v in x]
    head = w.get("lm_head.weight", w["embed.weight"])
    logits = torch.stack([head @ _norm(v, w["norm.weight"], spec) for v in x])
    cap = spec.logit_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _norm(x: torch.Tensor, weight: torch.Tensor, spec: ModelSpec) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean() + spec.norm_eps) * (weight + spec.norm_offset)


def _apply(own: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return own[f"{name}.weight"] @ x + own.get(f"{name}.bias", torch.zeros((), dtype=torch.float64))


def _mlp(own: Weights, activation: str, x: torch.Tensor) -> torch.Tensor:
    gate = _apply(own, "mlp.gate", x)
    if activation == "silu":
        gate = gate / (1 + torch.exp(-gate))
    elif activation == "gelu":
        gate = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
    else:
        gate = gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return _apply(own, "mlp.down", gate * _apply(own, "mlp.up", x))


def _attention(spec: ModelSpec, a: Gqa, own: Weights, x: list[torch.Tensor], context: int) -> list[torch.Tensor]:
    q = [_heads(spec, a, own, "q", v, p, context) for p, v in enumerate(x)]
    k = [_heads(spec, a, own, "k", v, p, context) for p, v in enumerate(x)]
    v = [_apply(own, "attn.v", t).view(-1, a.head_dim) for t in x]
    out: list[torch.Tensor] = []
    for p in range(len(x)):
        heads: list[torch.Tensor] = []
        seen = [s for s in range(p + 1) if a.window is None or p - s < a.window]
        for h in range(a.heads):
            kv = h // (a.heads // a.kv_heads)
            scores = [float(q[p][h] @ k[s][kv]) * a.scale for s in seen]
            if a.softcap is not None:
                scores = [a.softcap * math.tanh(s / a.softcap) for s in scores]
            total = sum(math.exp(s) for s in scores)
            if a.sinks:
                total += math.exp(float(own["attn.sinks"][h]))
            weighted = [math.exp(score) / total * v[s][kv] for s, score in zip(seen, scores, strict=True)]
            heads.append(torch.stack(weighted).sum(0))
        out.append(_apply(own, "attn.o", torch.cat(heads)))
    return out


def _heads(spec: ModelSpec, a: Gqa, own: Weights, part: str, x: torch.Tensor, p: int, context: int) -> torch.Tensor:
    heads = _apply(own, f"attn.{part}", x).view(-1, a.head_dim)
    if a.qk_norm:
        heads = torch.stack([_norm(head, own[f"attn.{part}_norm.weight"], spec) for head in heads])
    if a.rope is None:
        return heads
    return torch.stack([_rotate(head, spec.ropes[a.rope], p, context, spec.trained_context) for head in heads])


def _rotate(head: torch.Tensor, rope: RopeSpec, position: int, context: int, trained: int) -> torch.Tensor:
    frequencies = rope_frequencies(rope, context, trained)
    out, half = head.clone(), rope.dim // 2
    for i in range(half):
        angle = position * float(frequencies.values[i])
        cos, sin = math.cos(angle) * frequencies.scale, math.sin(angle) * frequencies.scale
        out[i] = head[i] * cos - head[i + half] * sin
        out[i + half] = head[i + half] * cos + head[i] * sin
    return out
