"""What the backends share: the cache layout, and why they reject a model."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.plugin.types import Gqa, KVFormat, KVGroup, KVLayout, KVPlane, ProbeContext
from inferd_plugins.attention.specs import FLOAT_FORMATS, SCALED_FORMATS


def layout_of(
    backend: str, group: KVGroup, format: KVFormat, block_size: int, formats: frozenset[KVFormat] = FLOAT_FORMATS
) -> KVLayout:
    """Return the layout of planes k and v. Raises ValueError for other planes or formats."""
    if format not in formats:
        raise ValueError(f"attention {backend} keeps KV as {', '.join(sorted(formats))}, not as {format}")
    names = tuple(plane.name for plane in group.planes)
    if names != ("k", "v"):
        raise ValueError(f"attention {backend} stores planes k and v, not {', '.join(names)}")
    return KVLayout(group, format, block_size, scale_planes(group.planes, format))


def scale_planes(planes: Sequence[KVPlane], format: KVFormat) -> tuple[KVPlane, ...]:
    """Return the planes of scales beside these, where the format has any."""
    if format not in SCALED_FORMATS:
        return ()
    return tuple(KVPlane(f"{plane.name}_scale", plane.heads, 1) for plane in planes)


def rejections(context: ProbeContext, formats: frozenset[KVFormat] = FLOAT_FORMATS) -> list[str]:
    """Return the reasons that hold for every backend of these formats."""
    reasons: list[str] = []
    if context.kv_format not in formats:
        reasons.append(f"KV format {context.kv_format} (has {', '.join(sorted(formats))})")
    if context.spec and any(not isinstance(layer.attention, Gqa) for layer in context.spec.layers):
        reasons.append("multi-head latent attention")
    return reasons


def beyond_plain_scores(context: ProbeContext) -> list[str]:
    """Return what a model asks of its scores that a backend of plain softmax attention does not compute."""
    layers = context.spec.layers if context.spec else ()
    specs = [layer.attention for layer in layers if isinstance(layer.attention, Gqa)]
    reasons: list[str] = []
    if any(spec.softcap is not None for spec in specs):
        reasons.append("soft-capped attention scores")
    if any(spec.sinks for spec in specs):
        reasons.append("attention sinks")
    return reasons
