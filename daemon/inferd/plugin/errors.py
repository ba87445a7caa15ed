"""Errors of finding, choosing and configuring plugins."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PluginError(ValueError):
    """A plugin cannot be used as asked. The message names the plugin and the remedy."""


class UnknownPluginError(PluginError):
    """The user named a plugin that is missing, refused or broken."""


class OptionsError(PluginError):
    """A `[plugin.KIND.NAME]` table holds something its plugin does not take."""


class ConflictError(PluginError):
    """No set of plugins serves the model; `pins` is a smallest set of choices at fault."""

    def __init__(self, message: str, pins: tuple[str, ...]) -> None:
        super().__init__(message)
        self.pins = pins


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as `; did you mean 'torch'?`, or the list of known names."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    return f"; known: {', '.join(names)}" if names else ""
