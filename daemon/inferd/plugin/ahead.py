"""Import the built-in plugins before anybody chooses among them; what others installed waits for the settings."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import pluggy

from inferd.plugin import hookspecs
from inferd.plugin.loading import Failure, load_source
from inferd.plugin.sources import discover


def import_builtins(device: str) -> None:
    """Import the target of every built-in plugin for `device`, but not one that cannot be imported here."""
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    for source in discover():
        specs = load_source(hooks, source) if source.builtin else []
        for spec in specs if not isinstance(specs, Failure) else []:
            if device in (spec.capabilities.devices or (device,)):
                with suppress(Exception):
                    import_module(spec.target.partition(":")[0])
