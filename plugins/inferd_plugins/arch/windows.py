"""Qwen's attention: which layers attend over a window, as config.json says it, and by which rope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferd.plugin.contracts import ConfigView
from inferd.plugin.types import Gqa, RopeSpec
from inferd_plugins.arch.sizes import Sizes

_LAYER_TYPES = ("full_attention", "sliding_attention")


def hf_windows(config: ConfigView, layers: int) -> list[int | None]:
    """Return the window of each layer; `use_sliding_window` off wins over everything else. Raises ValueError."""
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


def windowed(
    sizes: Sizes,
    ropes: Mapping[str, RopeSpec],
    windows: Sequence[int | None],
    *,
    qkv_bias: bool,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> list[Gqa]:
    """Return the attention of each layer; those with a window have the rope `sliding` where there is one."""
    return [
        Gqa(
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            rope="sliding" if window and "sliding" in ropes else "main",
            scale=sizes.head_dim**-0.5,
            window=window,
            qk_norm=qk_norm,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
        )
        for window in windows
    ]
