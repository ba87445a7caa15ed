"""Tiny models on disk for tests, with weights that give a wrong computation away.

Written with the official `safetensors` and `gguf` packages, never with the code under test. Matrices
are N(0, 1/fan_in), embeddings N(0, 1) (N(0, 1/hidden) where they are tied to the output, so that logits
keep a standard deviation near 1), norms U(0.5, 1.5), biases N(0, 0.5). A tensor depends on its name,
shape and `seed` only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from tests.tiny_tokenizer import BOS_ID, EOS_ID, write_tokenizer


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Options of a tiny model; every builder takes them as keywords."""

    arch: Literal["llama", "qwen2", "qwen3"] = "llama"
    vocab: int = 290
    hidden: int = 64
    inner: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = 2
    """None = key left out of config.json (multi-head attention)."""
    head_dim: int | None = None
    """None = key left out, hidden / heads."""
    context: int = 256
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope: Mapping[str, Any] | None = None
    """Scaling keys, e.g. {"rope_type": "linear", "factor": 4.0}."""
    rope_spelling: Literal["old", "new"] = "old"
    """old: `rope_theta` and `rope_scaling`; new: one `rope_parameters` table."""
    tied: bool = False
    attention_bias: bool = False
    """llama, qwen3: q, k, v, o biases. (qwen2 always has q, k, v biases.)"""
    mlp_bias: bool = False
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    shards: int = 1
    seed: int = 0
    add_bos: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    """Merged into config.json last; a value of None removes the key."""
    tensors: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    """Replace or add tensors by file name; None removes one."""

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden // self.heads


def tiny_llama(path: Path, **overrides: Any) -> Path:
    """Write a llama model in Hugging Face form into the folder `path` and return it."""
    return write_hf(path, Tiny(**overrides))


def tiny_qwen2(path: Path, **overrides: Any) -> Path:
    """Write a qwen2 model in Hugging Face form into the folder `path` and return it."""
    return write_hf(path, Tiny(arch="qwen2", **overrides))


def tiny_qwen3(path: Path, **overrides: Any) -> Path:
    """Write a qwen3 model in Hugging Face form into the folder `path` and return it."""
    return write_hf(path, Tiny(arch="qwen3", **overrides))


def tiny_gguf(path: Path, *, quant: str = "F32", types: Mapping[str, str] | None = None, **overrides: Any) -> Path:
    """Write `path`/model.gguf with the weights of the same options in Hugging Face form; return the file.

    `quant` is the type of all matrices, `types` overrides it by GGUF tensor name. K types get random
    blocks (the `gguf` package cannot quantize to them) and need rows of 256 values.
    """
    from tests.tiny_gguf import write_gguf

    return write_gguf(path, Tiny(**overrides), quant, types or {})


def weights(tiny: Tiny) -> dict[str, torch.Tensor]:
    """Return the float32 tensors of the model by Hugging Face name."""
    q_width, kv_width = tiny.heads * tiny.head_width, tiny.num_kv_heads * tiny.head_width
    out: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int, kind: str = "matrix") -> None:
        out[name] = _draw(name, shape, kind, tiny.seed)

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        add(f"{name}.weight", rows, columns)
        if bias:
            add(f"{name}.bias", rows, kind="bias")

    add("model.embed_tokens.weight", tiny.vocab, tiny.hidden, kind="matrix" if tiny.tied else "embedding")
    qkv_bias, out_bias = tiny.arch == "qwen2" or tiny.attention_bias, tiny.arch != "qwen2" and tiny.attention_bias
    for i in range(tiny.layers):
        layer = f"model.layers.{i}"
        add(f"{layer}.input_layernorm.weight", tiny.hidden, kind="norm")
        linear(f"{layer}.self_attn.q_proj", q_width, tiny.hidden, qkv_bias)
        linear(f"{layer}.self_attn.k_proj", kv_width, tiny.hidden, qkv_bias)
        linear(f"{layer}.self_attn.v_proj", kv_width, tiny.hidden, qkv_bias)
        linear(f"{layer}.self_attn.o_proj", tiny.hidden, q_width, out_bias)
        if tiny.arch == "qwen3":
            for part in "qk":
                add(f"{layer}.self_attn.{part}_norm.weight", tiny.head_width, kind="norm")
        add(f"{layer}.post_attention_layernorm.weight", tiny.hidden, kind="norm")
        linear(f"{layer}.mlp.gate_proj", tiny.inner, tiny.hidden, tiny.mlp_bias)
        linear(f"{layer}.mlp.up_proj", tiny.inner, tiny.hidden, tiny.mlp_bias)
        linear(f"{layer}.mlp.down_proj", tiny.hidden, tiny.inner, tiny.mlp_bias)
    add("model.norm.weight", tiny.hidden, kind="norm")
    if not tiny.tied:
        add("lm_head.weight", tiny.vocab, tiny.hidden)
    out |= {name: tensor for name, tensor in tiny.tensors.items() if tensor is not None}
    return {name: tensor for name, tensor in out.items() if tiny.tensors.get(name, tensor) is not None}


def _draw(name: str, shape: tuple[int, ...], kind: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {shape}".encode()))
    if kind == "norm":
        return torch.rand(shape, generator=generator) + 0.5
    scale = {"matrix": shape[-1] ** -0.5, "embedding": 1.0, "bias": 0.5}[kind]
    return torch.randn(shape, generator=generator) * scale


def config_json(tiny: Tiny) -> dict[str, Any]:
    """Return the content of config.json."""
    config: dict[str, Any] = {
        "architectures": [
            {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[tiny.arch]
        ],
        "model_type": tiny.arch,
        "vocab_size": tiny.vocab,
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.inner,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "max_position_embeddings": tiny.context,
        "rms_norm_eps": tiny.norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": tiny.tied,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": tiny.dtype,
    }
    if tiny.arch != "qwen2":
        config["attention_bias"] = tiny.attention_bias
    if tiny.arch == "llama":
        config["mlp_bias"] = tiny.mlp_bias
    if tiny.rope_spelling == "old":
        config |= {"rope_theta": tiny.rope_theta, "rope_scaling": tiny.rope and dict(tiny.rope)}
    else:
        config["rope_parameters"] = {"rope_type": "default", **(tiny.rope or {}), "rope_theta": tiny.rope_theta}
    config |= tiny.config
    return {key: value for key, value in config.items() if value is not None}


def write_hf(path: Path, tiny: Tiny) -> Path:
    """Write config, tokenizer and (sharded) safetensors into the folder `path`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_json(tiny)))
    write_tokenizer(path, tiny.vocab, add_bos=tiny.add_bos)
    stored = {name: t.to(getattr(torch, tiny.dtype)).contiguous() for name, t in weights(tiny).items()}
    if tiny.shards == 1:
        save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
        return path
    names = sorted(stored)
    weight_map: dict[str, str] = {}
    for i in range(tiny.shards):
        file = f"model-{i + 1:05d}-of-{tiny.shards:05d}.safetensors"
        mine = names[i :: tiny.shards]
        save_file({name: stored[name] for name in mine}, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, file)
    size = sum(t.numel() * t.element_size() for t in stored.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
