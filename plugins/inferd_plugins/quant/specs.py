"""Quantizers that ship with inferd. Imports no torch."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec

PLUGINS = (
    PluginSpec(
        name="none",
        kind="quantizer",
        target="inferd_plugins.quant.none:NoQuantizer",
        exactness="bit",
        capabilities=Capabilities(capture_safe=True),
        priority=10,
    ),
    PluginSpec(
        name="gguf",
        kind="quantizer",
        target="inferd_plugins.quant.gguf:GgufQuantizer",
        # Against the values that the file defines; what its maker rounded away is the file's matter.
        exactness="bit",
        capabilities=Capabilities(capture_safe=True),
        # Memory and decode time win only where a kernel computes on the packed form.
        effects=(
            Effect("capacity", "checkpoint_bytes", "better"),
            Effect("capacity", "weight_bytes", "none"),
            Effect("decode", "tpot", "none"),
            Effect("prefill", "ttft", "none"),
        ),
        baseline="none",
    ),
)
