"""Architectures that ship with inferd. Imports no torch."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, PluginSpec

PLUGINS = (
    PluginSpec(
        name="llama",
        kind="architecture",
        target="inferd_plugins.arch.llama:Llama",
        exactness="bit",
        capabilities=Capabilities(capture_safe=True),
    ),
    PluginSpec(
        name="qwen2",
        kind="architecture",
        target="inferd_plugins.arch.qwen2:Qwen2",
        exactness="bit",
        capabilities=Capabilities(capture_safe=True),
    ),
    PluginSpec(
        name="qwen3",
        kind="architecture",
        target="inferd_plugins.arch.qwen3:Qwen3",
        exactness="bit",
        capabilities=Capabilities(capture_safe=True),
    ),
)
