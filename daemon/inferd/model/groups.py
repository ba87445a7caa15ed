"""KV groups of a model: layers that share block tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inferd.plugin.types import Gqa, KVGroup, KVPlane

if TYPE_CHECKING:
    from inferd.plugin.types import ModelSpec


def kv_groups(spec: ModelSpec) -> list[KVGroup]:
    """Group the layers by planes and window, in order of first appearance.

    Raises ValueError for an attention kind that has no KV planes yet.
    """
    members: dict[tuple[tuple[KVPlane, ...], int | None], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        attention = _gqa(index, layer.attention)
        planes = tuple(KVPlane(name, attention.kv_heads, attention.head_dim) for name in ("k", "v"))
        members.setdefault((planes, attention.window), []).append(index)
    return [KVGroup(tuple(layers), planes, window) for (planes, window), layers in members.items()]


def expand_gqa(spec: ModelSpec) -> ModelSpec:
    """Return the spec with one KV head for every query head: the baseline GQA is measured against."""
    layers = [
        replace(layer, attention=replace(attention, kv_heads=attention.heads))
        for layer in spec.layers
        if isinstance(attention := layer.attention, Gqa)
    ]
    return replace(spec, layers=tuple(layers)) if len(layers) == spec.num_layers else spec


def _gqa(index: int, attention: object) -> Gqa:
    if not isinstance(attention, Gqa):
        raise ValueError(f"layer {index}: attention {type(attention).__name__} is not supported yet")
    return attention
