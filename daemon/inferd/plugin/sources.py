"""Where plugins come from: built-in modules and entry points, as one list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version

from inferd.plugin.hookspecs import PROJECT

BUILTINS = ("inferd_plugins.builtins",)
"""Modules of plugins that ship with inferd, loaded exactly like entry points."""


@dataclass(frozen=True, slots=True)
class Source:
    """One loadable piece of a distribution: a built-in module or an entry point."""

    name: str
    """Module name of a built-in, or name of the entry point."""
    distribution: str
    version: str
    value: str
    """What is loaded: `module` or `module:object`."""
    load: Callable[[], object] = field(compare=False, repr=False)
    builtin: bool = False

    @property
    def label(self) -> str:
        return f"{self.distribution} {self.version}"


def discover(builtins: Iterable[str] = BUILTINS) -> list[Source]:
    """Return every source, built-ins first, then entry points by distribution and name."""
    return [_builtin(module) for module in builtins] + _installed()


def _builtin(module: str) -> Source:
    return Source(
        name=module,
        distribution=PROJECT,
        version=_version(PROJECT),
        value=module,
        load=lambda: import_module(module),
        builtin=True,
    )


def _installed() -> list[Source]:
    found: dict[tuple[str, str], Source] = {}
    for entry in entry_points(group=PROJECT):
        distribution = entry.dist.name if entry.dist else "unknown"
        number = entry.dist.version if entry.dist else "unknown"
        source = Source(name=entry.name, distribution=distribution, version=number, value=entry.value, load=entry.load)
        found.setdefault((distribution, entry.name), source)
    return [found[key] for key in sorted(found)]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
