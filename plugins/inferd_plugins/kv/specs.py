"""The built-in KV managers, described without importing them."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec

PLUGINS = (
    PluginSpec(
        name="paged",
        kind="kv",
        target="inferd_plugins.kv.paged:PagedKV",
        capabilities=Capabilities(mla=True, capture_safe=True),
        exactness="token",
        effects=(
            Effect("capacity", "sequences", "better"),
            Effect("prefill", "ttft", "better"),
            Effect("decode", "tpot", "none"),
        ),
        baseline="contiguous",
        priority=10,
    ),
    PluginSpec(
        name="contiguous",
        kind="kv",
        target="inferd_plugins.kv.contiguous:ContiguousKV",
        capabilities=Capabilities(mla=True, capture_safe=True),
        exactness="bit",
    ),
    PluginSpec(
        name="recompute",
        kind="kv",
        target="inferd_plugins.kv.recompute:RecomputeKV",
        capabilities=Capabilities(mla=True, capture_safe=True),
        exactness="token",
        effects=(Effect("decode", "tpot", "worse"), Effect("prefill", "ttft", "none")),
        baseline="paged",
        priority=-10,
    ),
)
