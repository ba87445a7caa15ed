"""Load one source into specs, or nothing at all: a broken plugin leaves no trace."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from inferd.plugin.contracts import PluginSpec
from inferd.plugin.errors import PluginError
from inferd.plugin.hookspecs import HOOKS
from inferd.plugin.types import Exactness

if TYPE_CHECKING:
    import pluggy

    from inferd.plugin.sources import Source
    from inferd.plugin.types import Kind

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that could not be loaded, or a plugin whose target could not be imported."""

    source: Source
    reason: str
    """One line: the exception."""
    traceback: str


def load_source(pluggy_manager: pluggy.PluginManager, source: Source) -> list[PluginSpec] | Failure:
    """Import, register and ask one source; on any error undo it and return the failure.

    SystemExit counts as an error: a plugin must not end the daemon.
    """
    name = f"{source.distribution}:{source.name}"
    try:
        plugin = source.load()
        pluggy_manager.register(plugin, name=name)
        pluggy_manager.check_pending()
        return _ask(pluggy_manager, plugin)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - third-party code may raise anything
        _roll_back(pluggy_manager, name)
        return failure(source, error)


def failure(source: Source, error: BaseException) -> Failure:
    """Describe `error`, raised by code of `source`."""
    lines = traceback.format_exception(error)
    return Failure(source, f"{type(error).__name__}: {error}".strip(), "".join(lines))


def _roll_back(pluggy_manager: pluggy.PluginManager, name: str) -> None:
    if pluggy_manager.has_plugin(name):
        pluggy_manager.unregister(name=name)


def _ask(pluggy_manager: pluggy.PluginManager, plugin: object) -> list[PluginSpec]:
    """Call every hook of this plugin alone and return its checked specs."""
    others = [p for p in pluggy_manager.get_plugins() if p is not plugin]
    specs: list[PluginSpec] = []
    for kind, hook in HOOKS.items():
        for result in pluggy_manager.subset_hook_caller(hook, others)():
            specs += _checked(result, kind, hook)
    return specs


def _checked(result: object, kind: Kind, hook: str) -> list[PluginSpec]:
    if not isinstance(result, list | tuple):
        raise PluginError(f"{hook} must return a list of PluginSpec, not {type(result).__name__}")
    for spec in result:
        problem = _problem(spec, kind)
        if problem:
            raise PluginError(f"{hook} returned {spec!r}: {problem}")
    return list(result)


def _problem(spec: object, kind: Kind) -> str:
    if not isinstance(spec, PluginSpec):
        return "not a PluginSpec"
    if spec.kind != kind:
        return f"kind is {spec.kind!r}, this hook is for {kind!r}"
    if not _NAME.fullmatch(spec.name):
        return "a name is lower-case letters, digits, '.', '_' and '-'"
    if not _TARGET.fullmatch(spec.target):
        return "a target reads `package.module:Class`"
    if spec.exactness not in get_args(Exactness):
        return f"exactness must be one of {', '.join(get_args(Exactness))}"
    return ""
