"""What llama and its relatives share: the spec around the attention, and the tensor names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from inferd.plugin.types import DenseMlp, Gqa, LayerSpec, ModelSpec, RopeSpec, TensorRule
from inferd_plugins.arch.sizes import Sizes

Source = Literal["hf", "gguf"]

_MODEL: dict[Source, dict[str, str]] = {
    "hf": {
        "embed.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    },
    "gguf": {
        "embed.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
}

_LAYER: dict[Source, dict[str, str]] = {
    "hf": {
        "attn_norm": "model.layers.{i}.input_layernorm",
        "attn.q": "model.layers.{i}.self_attn.q_proj",
        "attn.k": "model.layers.{i}.self_attn.k_proj",
        "attn.v": "model.layers.{i}.self_attn.v_proj",
        "attn.o": "model.layers.{i}.self_attn.o_proj",
        "attn.q_norm": "model.layers.{i}.self_attn.q_norm",
        "attn.k_norm": "model.layers.{i}.self_attn.k_norm",
        "mlp_norm": "model.layers.{i}.post_attention_layernorm",
        "mlp.gate": "model.layers.{i}.mlp.gate_proj",
        "mlp.up": "model.layers.{i}.mlp.up_proj",
        "mlp.down": "model.layers.{i}.mlp.down_proj",
    },
    "gguf": {
        "attn_norm": "blk.{i}.attn_norm",
        "attn.q": "blk.{i}.attn_q",
        "attn.k": "blk.{i}.attn_k",
        "attn.v": "blk.{i}.attn_v",
        "attn.o": "blk.{i}.attn_output",
        "attn.q_norm": "blk.{i}.attn_q_norm",
        "attn.k_norm": "blk.{i}.attn_k_norm",
        "mlp_norm": "blk.{i}.ffn_norm",
        "mlp.gate": "blk.{i}.ffn_gate",
        "mlp.up": "blk.{i}.ffn_up",
        "mlp.down": "blk.{i}.ffn_down",
    },
}

_HEAD_NORMS = ("attn.q_norm", "attn.k_norm")

_DERIVED: dict[Source, tuple[str, ...]] = {
    "hf": ("model.layers.{i}.self_attn.rotary_emb.inv_freq",),
    "gguf": ("blk.{i}.attn_rot_embd",),
}
"""Rope tables that old converters stored with the weights; the spec holds what they hold."""


def model_spec(
    arch: str,
    sizes: Sizes,
    ropes: Mapping[str, RopeSpec],
    attention: Sequence[Gqa],
    *,
    mlp_bias: bool = False,
) -> ModelSpec:
    """Put a spec together from one attention a layer."""
    mlp = DenseMlp(sizes.inner, sizes.activation, mlp_bias)
    return ModelSpec(
        architecture=arch,
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        layers=tuple(LayerSpec(layer, mlp) for layer in attention),
        ropes=ropes,
        norm_eps=sizes.eps,
        trained_context=_trained_context(sizes.context, ropes["main"]),
        tied_embeddings=sizes.tied,
    )


def _trained_context(context: int, rope: RopeSpec) -> int:
    """Some YaRN configurations state the length before the extension, some the one after it."""
    if rope.kind == "yarn" and rope.original_context:
        return max(context, int(rope.original_context * rope.factor))
    return context


def tensor_rules(spec: ModelSpec, source: Source, *, permuted: bool = False) -> list[TensorRule]:
    """Name the tensor of every parameter; `permuted` = q and k rows were interleaved by a converter."""
    model = dict(_MODEL[source])
    if spec.tied_embeddings:
        del model["lm_head.weight"]
    rules = [TensorRule(target, name) for target, name in model.items()]
    for i, layer in enumerate(spec.layers):
        rules += _layer_rules(i, layer, source, permuted)
        rules += [TensorRule("", name.format(i=i), optional=True) for name in _DERIVED[source]]
    if source == "gguf":
        rules.append(TensorRule("", "rope_freqs.weight", optional=True))
    return rules


def _layer_rules(i: int, layer: LayerSpec, source: Source, permuted: bool) -> list[TensorRule]:
    attention = layer.attention
    assert isinstance(attention, Gqa)
    interleaved = {"attn.q": attention.heads, "attn.k": attention.kv_heads} if permuted else {}
    biased = {
        **dict.fromkeys(("attn.q", "attn.k", "attn.v"), attention.qkv_bias),
        "attn.o": attention.out_bias,
        **dict.fromkeys(("mlp.gate", "mlp.up", "mlp.down"), layer.mlp.bias),
    }
    rules: list[TensorRule] = []
    for part, stem in _LAYER[source].items():
        if part in _HEAD_NORMS and not attention.qk_norm:
            continue
        for kind in ("weight", "bias") if biased.get(part) else ("weight",):
            target, name = f"layers.{i}.{part}.{kind}", f"{stem.format(i=i)}.{kind}"
            rules.append(TensorRule(target, name, interleaved.get(part, 0)))
    return rules
