"""Which layers of a Qwen attend over a window, as its config.json says it."""

from __future__ import annotations

from inferd.plugin.contracts import ConfigView

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
