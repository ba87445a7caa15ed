"""The hooks of the example plugin. Describing it imports neither torch nor the backend."""

from __future__ import annotations

import msgspec

from inferd.plugin.contracts import Capabilities, PluginSpec
from inferd.plugin.hookspecs import hookimpl


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[plugin.attention.example]`."""

    heads_at_once: int = 0
    """KV heads computed together; 0 = all."""


SPEC = PluginSpec(
    name="example",
    kind="attention",
    target="inferd_example.backend:ExampleAttention",
    capabilities=Capabilities(devices=frozenset({"cpu"}), kv_formats=frozenset({"fp32"})),
    exactness="token",
    baseline="reference",
    priority=-1,
    options=Options,
)


@hookimpl
def inferd_attention_backends() -> list[PluginSpec]:
    return [SPEC]
