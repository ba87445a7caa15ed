"""Qwen2 and Qwen2.5: llama's graph with q, k and v biases, and windows on the upper layers."""

from __future__ import annotations

from typing import Literal

from inferd.plugin.contracts import Architecture, ConfigView
from inferd.plugin.types import Accept, Gqa, ModelSpec, ProbeContext, Reject, TensorRule, Verdict
from inferd_plugins.arch.decoder import model_spec, tensor_rules
from inferd_plugins.arch.rope import gguf_ropes, hf_ropes
from inferd_plugins.arch.sizes import gguf_sizes, hf_sizes

_LAYER_TYPES = ("full_attention", "sliding_attention")


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
            windows = _windows(config, sizes.layers)
        attention = [
            Gqa(
                sizes.heads,
                sizes.kv_heads,
                sizes.head_dim,
                rope="sliding" if window and "sliding" in ropes else "main",
                scale=sizes.head_dim**-0.5,
                window=window,
                qkv_bias=True,
            )
            for window in windows
        ]
        return model_spec("qwen2", sizes, ropes, attention)

    def tensors(self, spec: ModelSpec, source: Literal["hf", "gguf"]) -> list[TensorRule]:
        return tensor_rules(spec, source)


def _windows(config: ConfigView, layers: int) -> list[int | None]:
    """Return the window of each layer. `use_sliding_window` off wins over everything else."""
    if not config.bool("use_sliding_window", False):
        return [None] * layers
    window = config.int("sliding_window", 4096)
    first = config.int("max_window_layers", 28)
    types = config.raw("layer_types", [_LAYER_TYPES[i >= first] for i in range(layers)])
    if window < 1:
        raise ValueError(f"sliding_window must be positive, not {window}")
    if not isinstance(types, list) or len(types) != layers or any(t not in _LAYER_TYPES for t in types):
        raise ValueError(f"layer_types must name one of {', '.join(_LAYER_TYPES)} for each of {layers} layers")
    return [window if t == "sliding_attention" else None for t in types]
