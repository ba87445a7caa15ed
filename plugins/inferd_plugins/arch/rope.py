"""Read rotary embedding parameters in all spellings in use, and refuse what is not understood."""

from __future__ import annotations

from math import log
from typing import Literal, get_args

from inferd.plugin.contracts import ConfigView
from inferd.plugin.types import RopeSpec

Kind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]

DEFAULT_THETA = 10000.0
"""What both Hugging Face and llama.cpp assume for llama and qwen2 when nothing is said."""

_COMMON = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
_YARN = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}
_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor", "original_max_position_embeddings", *_YARN},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "longrope": {
        *("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
    },
}
"""Keys that each kind may have, beside the common ones."""

_LAYER_KINDS = {"full_attention": "main", "sliding_attention": "sliding"}


def hf_ropes(config: ConfigView, head_dim: int) -> dict[str, RopeSpec]:
    """Return the ropes of a config.json by name: `main`, and `sliding` where layer kinds differ.

    Spellings: `rope_theta` + `rope_scaling`, one `rope_parameters` table, or one such table per layer
    kind. Raises ValueError naming the key for contradictions, unknown kinds and unknown keys.
    """
    old, new = config.table("rope_scaling", None), config.table("rope_parameters", None)
    if old is not None and new is not None:
        raise ValueError("rope_scaling and rope_parameters are both set; keep one of them")
    table = old or new
    if table is None:
        return {"main": RopeSpec(config.float("rope_theta", DEFAULT_THETA), head_dim)}
    names = table.keys()
    nested = [key for key in names if isinstance(table.raw(key), dict)]
    if not nested:
        return {"main": _hf_rope(config, table, head_dim)}
    unknown = [key for key in names if key not in _LAYER_KINDS]
    if unknown or "full_attention" not in nested:
        raise ValueError(f"rope_parameters: layer kinds {nested + unknown} are not understood")
    return {_LAYER_KINDS[kind]: _hf_rope(config, table.table(kind), head_dim) for kind in nested}


def _hf_rope(config: ConfigView, table: ConfigView, head_dim: int) -> RopeSpec:
    kind = _kind(table)
    unknown = sorted(set(table.keys()) - _COMMON - _KEYS[kind])
    if unknown:
        raise ValueError(f"rope type {kind!r} does not know {', '.join(unknown)}")
    if table.float("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor other than 1 is not supported by this architecture")
    context = config.int("max_position_embeddings")
    original = table.int("original_max_position_embeddings", context)
    stretch = context / original if kind in ("yarn", "longrope") else ...
    return RopeSpec(
        theta=_theta(config, table),
        dim=head_dim,
        kind=kind,
        factor=1.0 if kind == "default" else _positive("factor", table.float("factor", stretch)),
        original_context=original if "original_max_position_embeddings" in _KEYS[kind] else None,
        attention_factor=table.float("attention_factor", None),
        beta_fast=table.float("beta_fast", 32.0),
        beta_slow=table.float("beta_slow", 1.0),
        mscale=table.float("mscale", None),
        mscale_all_dim=table.float("mscale_all_dim", None),
        truncate=table.bool("truncate", True),
        low_freq_factor=table.float("low_freq_factor", ... if kind == "llama3" else 1.0),
        high_freq_factor=table.float("high_freq_factor", ... if kind == "llama3" else 4.0),
        short_factor=_factors(table, "short_factor", head_dim) if kind == "longrope" else None,
        long_factor=_factors(table, "long_factor", head_dim) if kind == "longrope" else None,
    )


def _kind(table: ConfigView) -> Kind:
    new, old = table.str("rope_type", None), table.str("type", None)
    if new and old and new != old:
        raise ValueError(f"rope_type {new!r} and type {old!r} contradict each other")
    kind = new or old or "default"
    if kind not in get_args(Kind):
        raise ValueError(f"rope_type {kind!r} is unknown; known are {', '.join(get_args(Kind))}")
    return kind


def _theta(config: ConfigView, table: ConfigView) -> float:
    inner, outer = table.float("rope_theta", None), config.float("rope_theta", None)
    if inner is not None and outer is not None and inner != outer:
        raise ValueError(f"rope_theta is {outer} and, inside the rope table, {inner}")
    return _positive("rope_theta", inner or outer or DEFAULT_THETA)


def _factors(table: ConfigView, key: str, head_dim: int) -> tuple[float, ...]:
    values = table.raw(key)
    numbers = isinstance(values, list) and all(isinstance(v, int | float) and v > 0 for v in values)
    if not numbers or len(values) != head_dim // 2:
        raise ValueError(f"{key} must hold {head_dim // 2} positive numbers")
    return tuple(float(v) for v in values)


def _positive(key: str, value: float) -> float:
    if value <= 0:
        raise ValueError(f"{key} must be positive, not {value}")
    return value


def gguf_ropes(config: ConfigView, arch: str, head_dim: int) -> dict[str, RopeSpec]:
    """Return the ropes of GGUF metadata; `rope_freqs.weight` holds the divisors of llama 3."""
    prefix = f"{arch}.rope"
    if config.int(f"{prefix}.dimension_count", head_dim) != head_dim:
        raise ValueError(f"{prefix}.dimension_count other than the head size {head_dim} is not supported")
    factor = config.float(f"{prefix}.scaling.factor", config.float(f"{prefix}.scale_linear", 0.0)) or 1.0
    kind = config.str(f"{prefix}.scaling.type", "linear")
    theta = _positive(f"{prefix}.freq_base", config.float(f"{prefix}.freq_base", DEFAULT_THETA))
    divisors = config.floats("rope_freqs.weight") if config.tensor("rope_freqs.weight") else None
    if divisors is not None and (len(divisors) != head_dim // 2 or min(divisors) <= 0):
        raise ValueError(f"tensor rope_freqs.weight must hold {head_dim // 2} positive numbers")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"main": RopeSpec(theta, head_dim, freq_factors=divisors)}
    if kind == "linear":
        return {"main": RopeSpec(theta, head_dim, "linear", _positive(kind, factor), freq_factors=divisors)}
    if kind != "yarn":
        raise ValueError(f"{prefix}.scaling.type {kind!r} is unknown; known are none, linear, yarn")
    more = config.float(f"{prefix}.scaling.attn_factor", 1.0)
    rope = RopeSpec(
        theta,
        head_dim,
        "yarn",
        _positive(f"{prefix}.scaling.factor", factor),
        original_context=config.int(f"{prefix}.scaling.original_context_length", config.int(f"{arch}.context_length")),
        attention_factor=more * (1.0 + 0.1 * log(max(factor, 1.0))),
        beta_fast=config.float(f"{prefix}.scaling.yarn_beta_fast", 32.0),
        beta_slow=config.float(f"{prefix}.scaling.yarn_beta_slow", 1.0),
        freq_factors=divisors,
    )
    return {"main": rope}
