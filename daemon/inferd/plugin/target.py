"""Import a plugin's target and check that it is what its spec says."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

from inferd.plugin.contracts import (
    Architecture,
    AttentionBackend,
    DraftModel,
    KVManager,
    ParallelStrategy,
    Plugin,
    Quantizer,
)
from inferd.plugin.errors import PluginError

if TYPE_CHECKING:
    from inferd.plugin.contracts import PluginSpec
    from inferd.plugin.types import Kind

CONTRACTS: dict[Kind, type[Plugin]] = {
    "architecture": Architecture,
    "parallel": ParallelStrategy,
    "quantizer": Quantizer,
    "kv": KVManager,
    "attention": AttentionBackend,
    "draft": DraftModel,
}
"""The class that a plugin of each kind derives from."""


def load_target(spec: PluginSpec) -> type[Plugin]:
    """Import `spec.target`. Raises PluginError when it is not a complete class of its kind,
    and whatever importing the module raises."""
    module, _, name = spec.target.partition(":")
    found = getattr(import_module(module), name, None)
    contract = CONTRACTS[spec.kind]
    if not (isinstance(found, type) and issubclass(found, contract)):
        raise PluginError(f"target {spec.target} of {spec.kind} plugin {spec.name!r} is no {contract.__name__} class")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PluginError(f"target {spec.target} of {spec.kind} plugin {spec.name!r} does not implement {missing}")
    return found
