"""The plugins of each kind that may be tried, with their options, and what they say to a context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferd.plugin.capabilities import lacks
from inferd.plugin.errors import OptionsError, PluginError, UnknownPluginError, nearest
from inferd.plugin.loading import Failure, failure
from inferd.plugin.options import OptionTables, parse_options
from inferd.plugin.target import load_target
from inferd.plugin.types import KINDS, Accept, Kind, ProbeContext, Reject, Verdict

if TYPE_CHECKING:
    import msgspec

    from inferd.plugin.catalogue import Entry
    from inferd.plugin.contracts import Plugin
    from inferd.plugin.manager import PluginManager


@dataclass(slots=True)
class Candidate:
    """One plugin that may be chosen. A fault of a named one is fatal, of another a rejection."""

    entry: Entry
    table: Mapping[str, Any]
    named: bool
    options: msgspec.Struct | None = None
    cls: type[Plugin] | None = None
    failure: Failure | None = None

    def verdict(self, context: ProbeContext) -> Verdict:
        """Ask whether it can serve: declared capabilities first, then its options and its probe."""
        missing = lacks(self.entry.spec, context)
        if missing:
            return Reject(tuple(missing))
        if self.failure:
            return Reject((f"failed: {self.failure.reason}",))
        try:
            return self._probe(context)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - third-party code may raise anything
            return self._fail(error)

    def _probe(self, context: ProbeContext) -> Verdict:
        if self.cls is None:
            self.options = parse_options(self.entry.spec, self.table)
            self.cls = load_target(self.entry.spec)
        verdict = self.cls.probe(replace(context, options=self.table))
        if not isinstance(verdict, Accept | Reject):
            raise PluginError(f"probe returned {verdict!r}, not Accept or Reject")
        return verdict

    def _fail(self, error: BaseException) -> Reject:
        if self.named and isinstance(error, OptionsError):
            raise error
        if self.named:
            spec, label = self.entry.spec, self.entry.source.label
            raise UnknownPluginError(
                f"{spec.kind} plugin {spec.name!r} of {label} failed: {type(error).__name__}: {error}"
            ) from error
        self.failure = failure(self.entry.source, error)
        return Reject((f"failed: {self.failure.reason}",))


def candidates(manager: PluginManager, pins: Mapping[Kind, str], tables: OptionTables) -> dict[Kind, list[Candidate]]:
    """Return what may be tried for each kind, in order of preference; a pinned kind has one.

    Raises UnknownPluginError for a pin that names nothing usable, OptionsError for bad tables.
    """
    check_tables(manager, tables)
    return {kind: _of_kind(manager, kind, pins.get(kind, ""), tables.get(kind, {})) for kind in KINDS}


def check_tables(manager: PluginManager, tables: OptionTables) -> None:
    """Check every options table, chosen or not. Raises OptionsError or UnknownPluginError."""
    for kind, of_kind in tables.items():
        if kind not in KINDS:
            raise OptionsError(f"[plugin.{kind}]: no such kind of plugin{nearest(kind, KINDS)}")
        for name, table in of_kind.items():
            _check_table(manager, kind, name, table)


def _check_table(manager: PluginManager, kind: Kind, name: str, table: Mapping[str, Any]) -> None:
    named = [e for e in manager.entries if e.spec.kind == kind and e.spec.name == name]
    if not named:
        try:
            manager.find(kind, name)
        except UnknownPluginError as error:
            raise UnknownPluginError(f"[plugin.{kind}.{name}]: {error}") from None
    for entry in named:
        if entry.state == "available":
            parse_options(entry.spec, table)


def _of_kind(manager: PluginManager, kind: Kind, pin: str, tables: Mapping[str, Mapping[str, Any]]) -> list[Candidate]:
    entries = [manager.find(kind, pin)] if pin else manager.available(kind)
    return [Candidate(entry, tables.get(entry.spec.name, {}), named=bool(pin)) for entry in entries]
