"""What the float backends share: the cache layout, and why they reject a model."""

from __future__ import annotations

from inferd.plugin.types import Gqa, KVFormat, KVGroup, KVLayout, ProbeContext
from inferd_plugins.attention.specs import FLOAT_FORMATS


def float_layout(
    backend: str, group: KVGroup, format: KVFormat, block_size: int, formats: frozenset[KVFormat] = FLOAT_FORMATS
) -> KVLayout:
    """Return the plain layout of k and v. Raises ValueError for other planes or formats."""
    if format not in formats:
        raise ValueError(f"attention {backend} keeps KV as {', '.join(sorted(formats))}, not as {format}")
    names = tuple(plane.name for plane in group.planes)
    if names != ("k", "v"):
        raise ValueError(f"attention {backend} stores planes k and v, not {', '.join(names)}")
    return KVLayout(group=group, format=format, block_size=block_size)


def rejections(context: ProbeContext, formats: frozenset[KVFormat] = FLOAT_FORMATS) -> list[str]:
    """Return the reasons that hold for every float backend."""
    reasons: list[str] = []
    if context.kv_format not in formats:
        reasons.append(f"KV format {context.kv_format} (has {', '.join(sorted(formats))})")
    if context.spec and any(not isinstance(layer.attention, Gqa) for layer in context.spec.layers):
        reasons.append("multi-head latent attention")
    return reasons
