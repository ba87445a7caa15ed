"""Quantizers that ship with inferd. Imports no torch."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec
from inferd_plugins.quant.options import ChannelOptions, GroupOptions

FEWER_BYTES = (
    Effect("capacity", "weight_bytes", "better"),
    Effect("decode", "tpot", "better"),
)
"""Of packing at load, where a kernel computes on the packed form."""

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
    # Never chosen unless named: they change the model.
    PluginSpec(
        name="int4",
        kind="quantizer",
        target="inferd_plugins.quant.rtn:Int4",
        exactness="approximate",
        capabilities=Capabilities(capture_safe=True),
        effects=(*FEWER_BYTES, Effect("prefill", "ttft", "none")),
        baseline="none",
        options=GroupOptions,
    ),
    PluginSpec(
        name="int8",
        kind="quantizer",
        target="inferd_plugins.quant.rtn:Int8",
        exactness="approximate",
        capabilities=Capabilities(capture_safe=True),
        effects=(*FEWER_BYTES, Effect("prefill", "ttft", "better")),
        baseline="none",
        options=ChannelOptions,
    ),
    PluginSpec(
        name="fp8",
        kind="quantizer",
        target="inferd_plugins.quant.rtn:Fp8",
        exactness="approximate",
        capabilities=Capabilities(capture_safe=True),
        effects=(*FEWER_BYTES, Effect("prefill", "ttft", "better")),
        baseline="none",
        options=ChannelOptions,
    ),
)
