"""The parameter names that a model of a given spec has: what tensor rules must cover."""

from __future__ import annotations

from collections.abc import Iterator

from inferd.plugin.conformance.report import SkipCheckError
from inferd.plugin.types import Gqa, LayerSpec, ModelSpec


def parameters(spec: ModelSpec) -> set[str]:
    """Return the names, as `TensorRule.target` spells them. Raises SkipCheckError for other than Gqa layers."""
    names = {"embed.weight", "norm.weight"}
    if not spec.tied_embeddings:
        names.add("lm_head.weight")
    for i, layer in enumerate(spec.layers):
        names |= {f"layers.{i}.{name}" for name in _layer(layer)}
    return names


def _layer(layer: LayerSpec) -> Iterator[str]:
    attention = layer.attention
    if not isinstance(attention, Gqa):
        raise SkipCheckError(f"the kit does not know the parameters of {type(attention).__name__} layers")
    biased = {"q": attention.qkv_bias, "k": attention.qkv_bias, "v": attention.qkv_bias, "o": attention.out_bias}
    yield from ("attn_norm.weight", "mlp_norm.weight")
    for part, bias in biased.items():
        yield f"attn.{part}.weight"
        if bias:
            yield f"attn.{part}.bias"
    if attention.qk_norm:
        yield from ("attn.q_norm.weight", "attn.k_norm.weight")
    if attention.sinks:
        yield "attn.sinks"
    for part in ("gate", "up", "down"):
        yield f"mlp.{part}.weight"
        if layer.mlp.bias:
            yield f"mlp.{part}.bias"
