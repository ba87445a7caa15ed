"""Qwen2 and Qwen2.5: llama's graph with q, k and v biases, and windows on the upper layers."""

from __future__ import annotations

from typing import Literal

from inferd.plugin.contracts import Architecture, ConfigView
from inferd.plugin.types import Accept, ModelSpec, ProbeContext, Reject, TensorRule, Verdict
from inferd_plugins.arch.decoder import model_spec, tensor_rules
from inferd_plugins.arch.rope import gguf_ropes, hf_ropes
from inferd_plugins.arch.sizes import gguf_sizes, hf_sizes
from inferd_plugins.arch.windows import hf_windows, windowed


class Qwen2(Architecture):
    """The o projection never has a bias; GGUF files keep q and k in their own order."""

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        name = context.architecture_name
        return Accept() if name == "qwen2" else Reject((f"reads qwen2, not {name}",))

    def spec(self, config: ConfigView) -> ModelSpec:
        if config.source == "gguf":
            sizes = gguf_sizes(config, "qwen2")
            ropes = gguf_ropes(config, "qwen2", sizes.head_dim)
            windows: list[int | None] = [None] * sizes.layers
        else:
            sizes = hf_sizes(config)
            ropes = hf_ropes(config, sizes.head_dim)
            windows = hf_windows(config, sizes.layers)
        attention = windowed(sizes, ropes, windows, qkv_bias=True)
        return model_spec("qwen2", sizes, ropes, attention)

    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        return tensor_rules(spec, source)
