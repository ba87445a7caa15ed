"""Every known plugin as a row of `inferd plugins list`: state, source, and why it was not chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from inferd.plugin.catalogue import Entry
    from inferd.plugin.loading import Failure
    from inferd.plugin.manager import PluginManager
    from inferd.plugin.resolution import Resolution
    from inferd.plugin.sources import Source

UNKNOWN_KIND = "?"
"""Kind of a source that could not be loaded or was not asked: it may hold anything."""


class Listed(NamedTuple):
    """One row; the fields are those of `PluginInfo` in the wire protocol."""

    name: str
    kind: str
    state: Literal["available", "chosen", "rejected", "FAILED", "disabled"]
    source: str
    version: str
    api: str = ""
    target: str = ""
    exactness: str = ""
    why: str = ""


def listing(manager: PluginManager, resolution: Resolution | None = None) -> list[Listed]:
    """List described plugins, then failed and disabled sources; with a resolution also who was chosen."""
    rows = [_described(entry, resolution) for entry in manager.entries]
    rows += [_source(f.source, "FAILED", _told(f)) for f in manager.failures]
    rows += [_source(s, "disabled", f"plugins.disable lists {s.name!r} or {s.distribution!r}") for s in manager.blocked]
    return rows


def _described(entry: Entry, resolution: Resolution | None) -> Listed:
    spec, source = entry.spec, entry.source
    row = Listed(
        name=spec.name,
        kind=spec.kind,
        state="available",
        source=source.distribution,
        version=source.version,
        api=f"{spec.api[0]}.{spec.api[1]}",
        target=spec.target,
        exactness=spec.exactness,
        why=entry.why,
    )
    if entry.state != "available":
        return row._replace(state="disabled" if entry.state == "disabled" else "rejected")
    return row if resolution is None else _judged(row, entry, resolution)


def _judged(row: Listed, entry: Entry, resolution: Resolution) -> Listed:
    choice = resolution.choices[entry.spec.kind]
    if choice.spec is entry.spec:
        return row._replace(state="chosen", why=choice.note)
    failed = resolution.failures.get(entry.key)
    if failed is not None:
        return row._replace(state="FAILED", why=_told(failed))
    return row._replace(state="rejected", why=resolution.why(entry.spec.kind, entry.spec.name))


def _told(failure: Failure) -> str:
    return f"{failure.reason}\n{failure.traceback}"


def _source(source: Source, state: Literal["FAILED", "disabled"], why: str) -> Listed:
    return Listed(source.name, UNKNOWN_KIND, state, source.distribution, source.version, why=why)
