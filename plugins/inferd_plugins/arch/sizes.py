"""The numbers that every plain decoder declares, read from either source and checked."""

from __future__ import annotations

from typing import Literal, NamedTuple

from inferd.plugin.contracts import ConfigView

Activation = Literal["silu", "gelu", "gelu_tanh"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 24

GGUF_KEYS = {
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size", "tensor_data_layout"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.scale_linear"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
}
"""Hyperparameters of a plain decoder, without the architecture's prefix."""


class Sizes(NamedTuple):
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    activation: Activation
    tied: bool
    """No output matrix of its own is stored; one that is stored is used, whatever a flag says."""


def hf_sizes(config: ConfigView, *, head_dim: int | None = None) -> Sizes:
    """Read a config.json; `head_dim` is for one that names none (default: hidden / heads). Raises ValueError."""
    if config.raw("quantization_config", None) is not None:
        raise ValueError("quantization_config: quantised safetensors are not supported; use a GGUF file")
    activation = config.str("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ValueError(f"hidden_act {activation!r} is unknown; known are {', '.join(_ACTIVATIONS)}")
    hidden, heads = _count(config, "hidden_size", MAX_WIDTH), _count(config, "num_attention_heads", MAX_WIDTH)
    sizes = Sizes(
        hidden=hidden,
        inner=_count(config, "intermediate_size", MAX_WIDTH),
        layers=_count(config, "num_hidden_layers", MAX_LAYERS),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", MAX_WIDTH, heads),
        head_dim=_count(config, "head_dim", MAX_WIDTH, head_dim or _share(hidden, heads)),
        vocab=_count(config, "vocab_size", MAX_WIDTH),
        context=_count(config, "max_position_embeddings", 1 << 31),
        eps=config.float("rms_norm_eps", 1e-6),
        activation=_ACTIVATIONS[activation],
        tied=config.bool("tie_word_embeddings", False) and config.tensor("lm_head.weight") is None,
    )
    return _checked(sizes, "num_key_value_heads", "head_dim")


def gguf_sizes(config: ConfigView, arch: str) -> Sizes:
    """Read GGUF metadata under the prefix `arch`. Raises ValueError naming the key."""
    keys = config.keys()
    own = [key for key in keys if key.startswith(f"{arch}.")]
    unknown = [key for key in own if key.removeprefix(f"{arch}.") not in GGUF_KEYS]
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not understood by architecture {arch}")
    hidden = _count(config, f"{arch}.embedding_length", MAX_WIDTH)
    heads = _count(config, f"{arch}.attention.head_count", MAX_WIDTH)
    head_dim = _count(config, f"{arch}.attention.key_length", MAX_WIDTH, _share(hidden, heads))
    if config.int(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise ValueError(f"{arch}.attention.value_length differs from the key length {head_dim}")
    embedding = config.tensor("token_embd.weight")
    sizes = Sizes(
        hidden=hidden,
        inner=_count(config, f"{arch}.feed_forward_length", MAX_WIDTH),
        layers=_count(config, f"{arch}.block_count", MAX_LAYERS),
        heads=heads,
        kv_heads=_count(config, f"{arch}.attention.head_count_kv", MAX_WIDTH, heads),
        head_dim=head_dim,
        vocab=embedding.shape[0] if embedding else _count(config, f"{arch}.vocab_size", MAX_WIDTH),
        context=_count(config, f"{arch}.context_length", 1 << 31),
        eps=config.float(f"{arch}.attention.layer_norm_rms_epsilon"),
        activation="silu",
        tied=config.tensor("output.weight") is None,
    )
    return _checked(sizes, f"{arch}.attention.head_count_kv", f"{arch}.attention.key_length")


def _count(config: ConfigView, key: str, most: int, default: int | None = None) -> int:
    value = config.int(key, ... if default is None else default)
    if not 1 <= value <= most:
        raise ValueError(f"{key} must be from 1 to {most}, not {value}")
    return value


def _share(hidden: int, heads: int) -> int | None:
    """Return the head size that follows from the width, if one does."""
    return hidden // heads if hidden % heads == 0 else None


def _checked(sizes: Sizes, kv_key: str, dim_key: str) -> Sizes:
    if sizes.heads % sizes.kv_heads:
        raise ValueError(f"{kv_key}: {sizes.kv_heads} does not divide the {sizes.heads} attention heads")
    if sizes.head_dim % 2:
        raise ValueError(f"{dim_key}: heads of {sizes.head_dim} channels cannot be rotated in pairs")
    return sizes
