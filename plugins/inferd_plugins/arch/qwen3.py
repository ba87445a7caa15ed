"""Qwen3, the dense models: llama's graph with q and k of each head normed before the rotation."""

from __future__ import annotations

from typing import Literal

from inferd.plugin.contracts import Architecture, ConfigView
from inferd.plugin.types import Accept, ModelSpec, ProbeContext, Reject, TensorRule, Verdict
from inferd_plugins.arch.decoder import model_spec, tensor_rules
from inferd_plugins.arch.rope import gguf_ropes, hf_ropes
from inferd_plugins.arch.sizes import gguf_sizes, hf_sizes
from inferd_plugins.arch.windows import hf_windows, windowed

HEAD_DIM = 128
"""Of a config.json that does not say; hidden size and heads do not tell it."""


class Qwen3(Architecture):
    """Biases where `attention_bias` says so; GGUF files keep q and k in their own order."""

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        name = context.architecture_name
        return Accept() if name == "qwen3" else Reject((f"reads qwen3, not {name}",))

    def spec(self, config: ConfigView) -> ModelSpec:
        if config.source == "gguf":
            sizes = gguf_sizes(config, "qwen3")
            ropes = gguf_ropes(config, "qwen3", sizes.head_dim)
            windows: list[int | None] = [None] * sizes.layers
            qkv_bias, out_bias = (config.tensor(f"blk.0.{part}.bias") is not None for part in ("attn_q", "attn_output"))
        else:
            sizes = hf_sizes(config, head_dim=HEAD_DIM)
            ropes = hf_ropes(config, sizes.head_dim)
            windows = hf_windows(config, sizes.layers)
            qkv_bias = out_bias = config.bool("attention_bias", False)
        attention = windowed(sizes, ropes, windows, qkv_bias=qkv_bias, out_bias=out_bias, qk_norm=True)
        return model_spec("qwen3", sizes, ropes, attention)

    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        return tensor_rules(spec, source)
