"""Specs that between them use every field of ModelSpec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferd.plugin.types import DenseMlp, Gqa, LayerSpec, ModelSpec, RopeSpec

CONTEXT = 48
TOKENS = [(11 * i + i * i) % 60 for i in range(20)]
ROPE = RopeSpec(theta=50.0, dim=16)
PLAIN = Gqa(heads=4, kv_heads=2, head_dim=16, scale=0.25)


def spec(attention: Gqa = PLAIN, mlp: DenseMlp | None = None, rope: RopeSpec = ROPE, **fields: Any) -> ModelSpec:
    """Return a spec of two like layers."""
    layer = LayerSpec(attention, mlp or DenseMlp(40))
    values: dict[str, Any] = {
        "architecture": "test",
        "vocab_size": 60,
        "hidden_size": 32,
        "layers": (layer, layer),
        "ropes": {"main": rope, "local": replace(rope, theta=7.0)},
        "norm_eps": 1e-5,
        "trained_context": 16,
        "tied_embeddings": False,
    }
    return ModelSpec(**values | fields)


FEATURES: dict[str, ModelSpec] = {
    "plain": spec(),
    "tied, scaled, offset": spec(tied_embeddings=True, embedding_scale=5.0, norm_offset=1.0),
    "logit cap": spec(logit_softcap=2.0),
    "window": spec(replace(PLAIN, window=5)),
    "window longer than a prefill tile": spec(replace(PLAIN, window=17)),
    "soft cap": spec(replace(PLAIN, softcap=1.5)),
    "sinks": spec(replace(PLAIN, sinks=True)),
    "sinks in a window": spec(replace(PLAIN, sinks=True, window=4)),
    "qk norm": spec(replace(PLAIN, qk_norm=True)),
    "qk norm with offset": spec(replace(PLAIN, qk_norm=True), norm_offset=1.0),
    "biases": spec(replace(PLAIN, qkv_bias=True, out_bias=True), DenseMlp(40, bias=True)),
    "gelu": spec(mlp=DenseMlp(40, "gelu")),
    "gelu tanh": spec(mlp=DenseMlp(40, "gelu_tanh")),
    "no rope": spec(replace(PLAIN, rope=None)),
    "partial rope": spec(rope=RopeSpec(theta=50.0, dim=8)),
    "local and global layers": spec(
        layers=(
            LayerSpec(replace(PLAIN, rope="local", window=4), DenseMlp(40)),
            LayerSpec(PLAIN, DenseMlp(40)),
            LayerSpec(replace(PLAIN, rope="local", window=4), DenseMlp(40)),
        )
    ),
    "layers of different heads": spec(
        layers=(
            LayerSpec(Gqa(heads=6, kv_heads=3, head_dim=16, scale=0.25), DenseMlp(24)),
            LayerSpec(Gqa(heads=2, kv_heads=1, head_dim=16, scale=0.3), DenseMlp(40, "gelu")),
        )
    ),
}
