"""Quantizers that ship with inferd. Imports no torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec
from inferd_plugins.quant.options import ChannelOptions, GroupOptions


def _packer(name: str, target: str, options: type[msgspec.Struct], prefill: Literal["better", "none"]) -> PluginSpec:
    """Describe packing at load. It is never chosen unless named: it changes the model."""
    return PluginSpec(
        name=name,
        kind="quantizer",
        target=f"inferd_plugins.quant.rtn:{target}",
        exactness="approximate",
        capabilities=Capabilities(capture_safe=True),
        # Where a kernel computes on the packed form.
        effects=(
            Effect("capacity", "weight_bytes", "better"),
            Effect("decode", "tpot", "better"),
            Effect("prefill", "ttft", prefill),
        ),
        baseline="none",
        options=options,
    )


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
        priority=5,
    ),
    _packer("int4", "Int4", GroupOptions, "none"),
    _packer("int8", "Int8", ChannelOptions, "better"),
    _packer("fp8", "Fp8", ChannelOptions, "better"),
)
