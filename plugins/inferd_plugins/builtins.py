"""Hooks of the built-in plugins: the tables of the `specs` modules. Imports no torch."""

from __future__ import annotations

from inferd.plugin.contracts import PluginSpec
from inferd.plugin.hookspecs import hookimpl
from inferd_plugins.arch import specs as arch
from inferd_plugins.attention import specs as attention
from inferd_plugins.draft import specs as draft
from inferd_plugins.kv import specs as kv
from inferd_plugins.parallel import specs as parallel
from inferd_plugins.quant import specs as quant


@hookimpl
def inferd_architectures() -> list[PluginSpec]:
    return list(arch.PLUGINS)


@hookimpl
def inferd_parallel_strategies() -> list[PluginSpec]:
    return list(parallel.PLUGINS)


@hookimpl
def inferd_quantizers() -> list[PluginSpec]:
    return list(quant.PLUGINS)


@hookimpl
def inferd_kv_managers() -> list[PluginSpec]:
    return list(kv.PLUGINS)


@hookimpl
def inferd_attention_backends() -> list[PluginSpec]:
    return list(attention.PLUGINS)


@hookimpl
def inferd_draft_models() -> list[PluginSpec]:
    return list(draft.PLUGINS)
