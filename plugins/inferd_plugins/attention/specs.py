"""Attention backends that ship with inferd. Imports no torch."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, Effect, PluginSpec
from inferd.plugin.types import KVFormat

FLOAT_FORMATS: frozenset[KVFormat] = frozenset({"fp32", "bf16", "fp16"})
SCALED_FORMATS: frozenset[KVFormat] = frozenset({"int8", "fp8"})
"""One byte a value, a scale a token and head."""
ALL_FORMATS = FLOAT_FORMATS | SCALED_FORMATS

PLUGINS: tuple[PluginSpec, ...] = (
    PluginSpec(
        name="triton",
        kind="attention",
        target="inferd_plugins.attention.triton:TritonAttention",
        capabilities=Capabilities(
            kv_formats=ALL_FORMATS,
            capture_safe=True,
            capture_devices=frozenset({"cuda"}),
            max_verify=15,
        ),
        exactness="token",
        effects=(
            Effect("prefill", "ttft", "better"),
            Effect("prefill", "peak_bytes", "better"),
            Effect("decode", "tpot", "better"),
        ),
        baseline="torch",
        priority=20,
    ),
    PluginSpec(
        name="torch",
        kind="attention",
        target="inferd_plugins.attention.torch:TorchAttention",
        capabilities=Capabilities(kv_formats=FLOAT_FORMATS),
        exactness="token",
        effects=(
            Effect("prefill", "ttft", "better"),
            Effect("prefill", "peak_bytes", "better"),
            Effect("decode", "tpot", "better"),
        ),
        baseline="reference",
        priority=10,
    ),
    PluginSpec(
        name="cpu",
        kind="attention",
        target="inferd_plugins.attention.cpu:CpuAttention",
        capabilities=Capabilities(
            devices=frozenset({"cpu"}), dtypes=frozenset({"fp32"}), kv_formats=ALL_FORMATS, capture_safe=True
        ),
        exactness="bit",
        effects=(
            Effect("prefill", "ttft", "better"),
            Effect("prefill", "peak_bytes", "better"),
            Effect("decode", "tpot", "better"),
        ),
        baseline="torch",
        priority=20,
    ),
    PluginSpec(
        name="reference",
        kind="attention",
        target="inferd_plugins.attention.reference:ReferenceAttention",
        capabilities=Capabilities(kv_formats=FLOAT_FORMATS),
        exactness="bit",
    ),
)
