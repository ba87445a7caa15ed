"""Plugins that each break their contract in one way, and the check that must notice it."""

from __future__ import annotations

from inferd.plugin.contracts import Capabilities, Plugin, PluginSpec
from inferd.plugin.types import Exactness, Kind, KVFormat

FLOATS: frozenset[KVFormat] = frozenset({"fp32", "bf16", "fp16"})


def describe(cls: type[Plugin], kind: Kind, name: str = "mutant", *, exactness: Exactness = "token") -> PluginSpec:
    """Return the spec that a package would give for `cls`."""
    capabilities = Capabilities(kv_formats=FLOATS) if kind == "attention" else Capabilities()
    target = f"{cls.__module__}:{cls.__name__}"
    return PluginSpec(name=name, kind=kind, target=target, capabilities=capabilities, exactness=exactness)
