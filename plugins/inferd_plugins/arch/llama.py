"""Llama (Touvron et al. 2023) and the many models that share its graph."""

from __future__ import annotations

from typing import Literal

from inferd.plugin.contracts import Architecture, ConfigView
from inferd.plugin.types import Accept, Gqa, ModelSpec, ProbeContext, Reject, TensorRule, Verdict
from inferd_plugins.arch.decoder import model_spec, tensor_rules
from inferd_plugins.arch.rope import gguf_ropes, hf_ropes
from inferd_plugins.arch.sizes import gguf_sizes, hf_sizes


class Llama(Architecture):
    """RMSNorm, rotary GQA, SwiGLU; biases where `attention_bias` or `mlp_bias` say so."""

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        name = context.architecture_name
        return Accept() if name == "llama" else Reject((f"reads llama, not {name}",))

    def spec(self, config: ConfigView) -> ModelSpec:
        if config.source == "gguf":
            sizes = gguf_sizes(config, "llama")
            ropes = gguf_ropes(config, "llama", sizes.head_dim)
            qkv_bias, out_bias, mlp_bias = (
                config.tensor(f"blk.0.{part}.bias") is not None for part in ("attn_q", "attn_output", "ffn_down")
            )
        else:
            _refuse(config)
            sizes = hf_sizes(config)
            ropes = hf_ropes(config, sizes.head_dim)
            qkv_bias = out_bias = config.bool("attention_bias", False)
            mlp_bias = config.bool("mlp_bias", False)
        attention = Gqa(
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
        )
        return model_spec("llama", sizes, ropes, [attention] * sizes.layers, mlp_bias=mlp_bias)

    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        return tensor_rules(spec, source, permuted=source == "gguf")


def _refuse(config: ConfigView) -> None:
    if config.bool("rope_interleaved", False):
        raise ValueError("rope_interleaved is not supported")
    if config.int("sliding_window", None) is not None:
        raise ValueError("sliding_window is not supported for model_type llama")
