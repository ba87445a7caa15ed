"""Parallel strategies that ship with inferd. Imports no torch."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec
from inferd_plugins.parallel.options import LayersOptions

PLUGINS = (
    PluginSpec(
        name="single",
        kind="parallel",
        target="inferd_plugins.parallel.single:Single",
        exactness="bit",
        capabilities=Capabilities(capture_safe=True),
        priority=10,
    ),
    PluginSpec(
        name="layers",
        kind="parallel",
        target="inferd_plugins.parallel.layers:Layers",
        exactness="bit",
        capabilities=Capabilities(devices=frozenset({"cpu"})),
        effects=(
            Effect("capacity", "model_bytes_per_rank", "better"),
            Effect("decode", "tpot", "worse"),
            Effect("prefill", "ttft", "none"),
        ),
        baseline="single",
        options=LayersOptions,
    ),
)
