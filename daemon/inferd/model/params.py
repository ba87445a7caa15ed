"""Names and shapes of every parameter of a `Decoder`: what strict loading is strict about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.plugin.types import Gqa

if TYPE_CHECKING:
    from inferd.plugin.types import LayerSpec, ModelSpec, RankPlacement

Shapes = dict[str, tuple[int, ...]]


def parameters(spec: ModelSpec) -> Shapes:
    """Return the shape of each parameter by name; `lm_head.weight` is absent when tied."""
    shapes: Shapes = {"embed.weight": (spec.vocab_size, spec.hidden_size)}
    for index, layer in enumerate(spec.layers):
        own = _layer(layer, spec.hidden_size)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in own.items()}
    shapes["norm.weight"] = (spec.hidden_size,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def held_by(name: str, spec: ModelSpec, placement: RankPlacement) -> bool:
    """Tell whether this rank holds the parameter `name`."""
    if name.startswith("layers."):
        return int(name.split(".")[1]) in placement.layers
    if name == "embed.weight":
        return placement.embeds or (placement.samples and spec.tied_embeddings)
    return placement.samples


def _layer(layer: LayerSpec, hidden: int) -> Shapes:
    attention, inner = layer.attention, layer.mlp.inner
    if not isinstance(attention, Gqa):
        raise ValueError(f"attention {type(attention).__name__} is not supported yet")
    q_rows, kv_rows = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    shapes: Shapes = {"attn_norm.weight": (hidden,), "mlp_norm.weight": (hidden,)}
    shapes |= _linear("attn.q", q_rows, hidden, attention.qkv_bias)
    shapes |= _linear("attn.k", kv_rows, hidden, attention.qkv_bias)
    shapes |= _linear("attn.v", kv_rows, hidden, attention.qkv_bias)
    shapes |= _linear("attn.o", hidden, q_rows, attention.out_bias)
    if attention.qk_norm:
        shapes |= {f"attn.{name}.weight": (attention.head_dim,) for name in ("q_norm", "k_norm")}
    if attention.sinks:
        shapes["attn.sinks"] = (attention.heads,)
    shapes |= _linear("mlp.gate", inner, hidden, layer.mlp.bias)
    shapes |= _linear("mlp.up", inner, hidden, layer.mlp.bias)
    return shapes | _linear("mlp.down", hidden, inner, layer.mlp.bias)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    return shapes | {f"{name}.bias": (rows,)} if bias else shapes
