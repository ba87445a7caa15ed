"""The hooks a plugin package may implement: one a kind, all with the same rules.

When: once per process, while `PluginManager.load` runs: in the front and the command line to list
plugins, in every engine worker and rank before a model loads. Never in the step loop.
By whom: the plugin manager, for each source (built-in module or entry point) by itself.
Result: a list of `PluginSpec`s; the lists of all sources are joined. An empty list is fine.

A hook must be cheap and must not import torch: it describes plugins; the resolver imports the
`target` of the one that is chosen. A hook that raises, or returns anything else than specs of its
own kind, quarantines its whole source: nothing of it is used, and `inferd plugins list` shows it as
FAILED with the traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from inferd.plugin.contracts import PluginSpec
    from inferd.plugin.types import Kind

PROJECT = "inferd"
"""pluggy project name, and the entry-point group of plugin packages."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator for the functions of a plugin module that implement a hook."""

HOOKS: dict[Kind, str] = {
    "architecture": "inferd_architectures",
    "parallel": "inferd_parallel_strategies",
    "quantizer": "inferd_quantizers",
    "kv": "inferd_kv_managers",
    "attention": "inferd_attention_backends",
    "draft": "inferd_draft_models",
}
"""Hook of each kind, in the order of resolution."""


@hookspec
def inferd_architectures() -> list[PluginSpec]:
    """Describe readers of checkpoint configurations (`Architecture`).

    Called while plugins load, by the manager; the lists of all sources are joined. Chosen first:
    the probe sees `architecture_name`, `source`, device and dtype only.
    """
    raise NotImplementedError


@hookspec
def inferd_parallel_strategies() -> list[PluginSpec]:
    """Describe ways to spread a model over ranks (`ParallelStrategy`).

    Called while plugins load, by the manager; the lists of all sources are joined. Chosen second:
    the probe sees the model's spec.
    """
    raise NotImplementedError


@hookspec
def inferd_quantizers() -> list[PluginSpec]:
    """Describe codecs from stored tensors into packed forms (`Quantizer`).

    Called while plugins load, by the manager; the lists of all sources are joined. Chosen third:
    the probe sees the storage types of the weights.
    """
    raise NotImplementedError


@hookspec
def inferd_kv_managers() -> list[PluginSpec]:
    """Describe bookkeepers of KV blocks (`KVManager`); these import no torch.

    Called while plugins load, by the manager; the lists of all sources are joined. Chosen fourth.
    """
    raise NotImplementedError


@hookspec
def inferd_attention_backends() -> list[PluginSpec]:
    """Describe attention implementations (`AttentionBackend`).

    Called while plugins load, by the manager; the lists of all sources are joined. Chosen fifth:
    the probe sees the model's layers and the chosen KV manager.
    """
    raise NotImplementedError


@hookspec
def inferd_draft_models() -> list[PluginSpec]:
    """Describe proposers of draft tokens (`DraftModel`).

    Called while plugins load, by the manager; the lists of all sources are joined. Chosen last:
    the probe sees every other choice.
    """
    raise NotImplementedError
