"""Hooks of the built-in plugins: the tables of the `specs` modules. Imports no torch."""

from __future__ import annotations

from importlib import import_module

from inferd.plugin.contracts import PluginSpec
from inferd.plugin.hookspecs import hookimpl


def _table(folder: str) -> list[PluginSpec]:
    try:
        return list(import_module(f"inferd_plugins.{folder}.specs").PLUGINS)
    except ModuleNotFoundError:
        return []


@hookimpl
def inferd_architectures() -> list[PluginSpec]:
    return _table("arch")


@hookimpl
def inferd_parallel_strategies() -> list[PluginSpec]:
    return _table("parallel")


@hookimpl
def inferd_quantizers() -> list[PluginSpec]:
    return _table("quant")


@hookimpl
def inferd_kv_managers() -> list[PluginSpec]:
    return _table("kv")


@hookimpl
def inferd_attention_backends() -> list[PluginSpec]:
    return _table("attention")


@hookimpl
def inferd_draft_models() -> list[PluginSpec]:
    return _table("draft")
