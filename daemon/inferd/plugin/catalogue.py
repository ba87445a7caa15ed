"""Settle which of the described plugins may be chosen: api, disabling, duplicates, overrides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from inferd.plugin.contracts import API, PluginSpec

if TYPE_CHECKING:
    from inferd.plugin.sources import Source
    from inferd.plugin.types import Kind

State = Literal["available", "disabled", "overridden", "refused"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One described plugin, where it comes from, and whether it may be chosen."""

    spec: PluginSpec
    source: Source
    state: State = "available"
    why: str = ""

    @property
    def key(self) -> str:
        """`KIND.NAME`, as in the plugin's config table."""
        return f"{self.spec.kind}.{self.spec.name}"


def settle(entries: Iterable[Entry], disable: Collection[str]) -> list[Entry]:
    """Return the entries with their final states. The order of the input does not matter."""
    by_kind: dict[Kind, list[Entry]] = defaultdict(list)
    settled: list[Entry] = []
    for entry in entries:
        first = _disabled(entry, disable) or _refused_api(entry)
        if first:
            settled.append(first)
        else:
            by_kind[entry.spec.kind].append(entry)
    for group in by_kind.values():
        settled += _settle_duplicates(_settle_overrides(group))
    return settled


def api_problem(api: tuple[int, int]) -> str:
    """Say why a plugin made for contract version `api` cannot be used; empty = it can."""
    wanted, offered = (f"{v[0]}.{v[1]}" for v in (api, API))
    if api > API:
        return f"needs plugin api {wanted}, this inferd offers {offered}: upgrade inferd to one with api {wanted}"
    if api[0] < API[0]:
        return f"made for plugin api {wanted}, no longer offered (now {offered}): upgrade the plugin"
    return ""


def _disabled(entry: Entry, disable: Collection[str]) -> Entry | None:
    if entry.key in disable:
        return replace(entry, state="disabled", why=f"plugins.disable lists {entry.key!r}")
    return None


def _refused_api(entry: Entry) -> Entry | None:
    problem = api_problem(entry.spec.api)
    return replace(entry, state="refused", why=problem) if problem else None


def _settle_overrides(group: Sequence[Entry]) -> list[Entry]:
    """Mark what is replaced; two that replace the same plugin are both refused."""
    claims: dict[str, list[Entry]] = defaultdict(list)
    for entry in group:
        if entry.spec.overrides:
            claims[entry.spec.overrides].append(entry)
    rivals = {id(e): es for es in claims.values() if len(es) > 1 for e in es}
    winners = {victim: es[0] for victim, es in claims.items() if len(es) == 1}
    return [_override(entry, winners, rivals.get(id(entry))) for entry in group]


def _override(entry: Entry, winners: dict[str, Entry], rivals: list[Entry] | None) -> Entry:
    if rivals:
        names = ", ".join(f"{e.spec.name} of {e.source.label}" for e in rivals)
        return replace(entry, state="refused", why=f"several plugins override {entry.spec.overrides!r}: {names}")
    winner = winners.get(entry.spec.name)
    if winner and winner is not entry:
        return replace(entry, state="overridden", why=f"replaced by {winner.spec.name} of {winner.source.label}")
    return entry


def _settle_duplicates(group: Sequence[Entry]) -> list[Entry]:
    """Refuse all but a built-in of the plugins that share a name."""
    by_name: dict[str, list[Entry]] = defaultdict(list)
    for entry in group:
        if entry.state == "available":
            by_name[entry.spec.name].append(entry)
    return [_duplicate(e, by_name[e.spec.name]) if e.state == "available" else e for e in group]


def _duplicate(entry: Entry, same: list[Entry]) -> Entry:
    builtins = [e for e in same if e.source.builtin]
    if len(same) == 1 or (entry.source.builtin and len(builtins) == 1):
        return entry
    owners = ", ".join(sorted(f"{e.source.label} ({e.source.name})" for e in same))
    why = f"duplicate name {entry.spec.name!r}, claimed by {owners}: rename it, say overrides=, or disable one"
    return replace(entry, state="refused", why=why)
