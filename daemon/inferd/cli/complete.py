"""What tab completion offers for arguments: names of models, plugins, settings and clients. Never fails, never slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from inferd.cli.state import State

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offer(find: Callable[[State], Iterable[str]]) -> Complete:
    """Return a callback of click that offers what `find` names; whatever goes wrong, it offers nothing."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = sorted(set(find(_state(ctx))))
        except Exception:  # noqa: BLE001 - an error has no place to be shown in the middle of a command line
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _state(ctx: click.Context) -> State:
    """Return what the global options before the word say."""
    given: dict[str, Any] = ctx.find_root().params
    return State(given.get("config_path"), tuple(given.get("settings") or ()), given.get("runtime"))


def _models(state: State) -> Iterable[str]:
    return (*state.store.names(), *(name for name, own in state.loaded.config.models.items() if own.path))


def _catalogue(_state: State) -> Iterable[str]:
    from inferd.load.pull_catalogue import CATALOGUE

    return CATALOGUE


def _settings(_state: State) -> Iterable[str]:
    from inferd.config.check import known_keys

    return known_keys()


def _clients(state: State) -> Iterable[str]:
    from inferd.keys import KeyStore

    return KeyStore(state.paths.state).clients()


def _plugins(state: State, kind: str = "") -> Iterable[str]:
    """Name plugins as KIND.NAME, or those of one kind by their names alone."""
    from inferd.plugin.manager import PluginManager

    specs = [entry.spec for entry in PluginManager(state.loaded.config.plugins.disable).load().entries]
    return [spec.name if kind else f"{spec.kind}.{spec.name}" for spec in specs if kind in ("", spec.kind)]


def plugins_of(kind: str) -> Complete:
    """Offer the plugins of one kind."""
    return _offer(lambda state: _plugins(state, kind))


models = _offer(_models)
catalogue = _offer(_catalogue)
settings = _offer(_settings)
clients = _offer(_clients)
plugins = _offer(_plugins)


def models_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer models by name, and files once a path is begun."""
    if "/" in incomplete or incomplete.startswith((".", "~")):
        return [CompletionItem(incomplete, type="file")]
    return models(ctx, param, incomplete)
