"""Quantizers that ship with inferd. Imports no torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec
from inferd_plugins.quant.options import ChannelOptions, GroupOptions


def _packed_effects(prefill: Literal["better", "none"]) -> tuple[Effect, ...]:
    """Return what packed weights do where a kernel computes on their form, as those of the CPU and of GPUs do."""
    return (
        Effect("capacity", "weight_bytes", "better"),
        Effect("decode", "tpot", "better"),
        Effect("prefill", "ttft", prefill),
    )


def _packer(name: str, target: str, options: type[msgspec.Struct], prefill: Literal["better", "none"]) -> PluginSpec:
    """Describe packing at load. It is never chosen unless named: it changes the model."""
    return PluginSpec(
        name=name,
        kind="quantizer",
        target=f"inferd_plugins.quant.rtn:{target}",
        exactness="approximate",
        capabilities=Capabilities(capture_safe=True),
        effects=_packed_effects(prefill),
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
        effects=(Effect("capacity", "checkpoint_bytes", "better"), *_packed_effects("none")),
        baseline="none",
        priority=5,
    ),
    _packer("int4", "Int4", GroupOptions, "none"),
    _packer("int8", "Int8", ChannelOptions, "better"),
    _packer("fp8", "Fp8", ChannelOptions, "better"),
)
