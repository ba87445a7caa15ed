"""Find plugins and keep the catalogue of them. Imports no plugin target and no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from inferd.plugin import hookspecs
from inferd.plugin.catalogue import Entry, settle
from inferd.plugin.errors import UnknownPluginError, nearest
from inferd.plugin.loading import Failure, load_source
from inferd.plugin.sources import BUILTINS, Source, discover

if TYPE_CHECKING:
    from inferd.plugin.contracts import PluginSpec
    from inferd.plugin.types import Kind


class PluginManager:
    """All known plugins of this process.

    `disable` lists what is left out: `KIND.NAME` for one plugin, or the name of an entry point or
    of a distribution, which is then not even imported.
    """

    def __init__(self, disable: Iterable[str] = (), *, builtins: Iterable[str] = BUILTINS) -> None:
        self.entries: list[Entry] = []
        self.failures: list[Failure] = []
        self.blocked: list[Source] = []
        self._disable = tuple(disable)
        self._builtins = tuple(builtins)

    def load(self) -> PluginManager:
        """Load every source, each by itself. Never raises for a plugin's fault."""
        hooks = pluggy.PluginManager(hookspecs.PROJECT)
        hooks.add_hookspecs(hookspecs)
        described: list[Entry] = []
        self.failures, self.blocked = [], []
        for source in discover(self._builtins):
            if source.name in self._disable or source.distribution in self._disable:
                self.blocked.append(source)
                continue
            result = load_source(hooks, source)
            if isinstance(result, Failure):
                self.failures.append(result)
            else:
                described += [Entry(spec, source) for spec in result]
        self.entries = settle(described, self._disable)
        return self

    def available(self, kind: Kind) -> list[Entry]:
        """Return what may be chosen, the most preferred first: by priority, then name."""
        usable = [e for e in self.entries if e.spec.kind == kind and e.state == "available"]
        return sorted(usable, key=lambda e: (-e.spec.priority, e.spec.name))

    def specs(self, kind: Kind) -> list[PluginSpec]:
        """Return the specs of `available`."""
        return [e.spec for e in self.available(kind)]

    def find(self, kind: Kind, name: str) -> Entry:
        """Return the plugin of this name, or the one that overrides it.

        Raises UnknownPluginError saying why it cannot be used, with nearest names when there is none.
        """
        usable = self.available(kind)
        named = [e for e in self.entries if e.spec.kind == kind and e.spec.name == name]
        clash = [e for e in named if e.state == "refused" and "duplicate" in e.why]
        if clash:
            raise UnknownPluginError(f"{kind} plugin {name!r}: {clash[0].why}")
        found = [e for e in usable if e.spec.overrides == name] or [e for e in usable if e.spec.name == name]
        if found:
            return found[0]
        if named:
            raise UnknownPluginError(f"{kind} plugin {name!r} is {named[0].state}: {named[0].why}")
        raise UnknownPluginError(f"no {kind} plugin {name!r}{nearest(name, self._names(kind))}{self._hint()}")

    def unmatched_disables(self) -> list[str]:
        """Return the entries of `disable` that name nothing that is installed."""
        known = {e.key for e in self.entries if e.state == "disabled"}
        known |= {s.name for s in self.blocked} | {s.distribution for s in self.blocked}
        return [name for name in self._disable if name not in known]

    def _names(self, kind: Kind) -> list[str]:
        return [e.spec.name for e in self.entries if e.spec.kind == kind]

    def _hint(self) -> str:
        if not self.failures:
            return ""
        lines = [f"{f.source.name} of {f.source.label} ({f.reason})" for f in self.failures]
        return f" (failed to load: {'; '.join(lines)})"
