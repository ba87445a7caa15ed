"""What parent and worker must agree on before they work together: the active plugins, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from inferd.plugin.options import options_hash

if TYPE_CHECKING:
    from inferd.plugin.resolver import Resolution


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One active plugin."""

    kind: str
    name: str
    distribution: str
    version: str
    target: str
    options_hash: str

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"


def manifest(resolution: Resolution) -> tuple[ManifestEntry, ...]:
    """Describe the chosen plugins, in order of resolution."""
    return tuple(
        ManifestEntry(
            kind=kind,
            name=choice.spec.name,
            distribution=choice.source.distribution,
            version=choice.source.version,
            target=choice.spec.target,
            options_hash=options_hash(choice.options),
        )
        for kind, choice in resolution.choices.items()
    )


def compare(expected: Sequence[ManifestEntry], found: Sequence[ManifestEntry]) -> list[str]:
    """Return one line for each difference; empty when both sides agree."""
    ours, theirs = {e.kind: e for e in expected}, {e.kind: e for e in found}
    lines: list[str] = []
    for kind in dict.fromkeys([*ours, *theirs]):
        lines += _differences(kind, ours.get(kind), theirs.get(kind))
    return lines


def _differences(kind: str, ours: ManifestEntry | None, theirs: ManifestEntry | None) -> Iterable[str]:
    if ours is None or theirs is None:
        here, there = (e.name if e else "no plugin" for e in (ours, theirs))
        return [f"{kind}: expected {here}, found {there}"]
    changed = [f for f in ManifestEntry.__struct_fields__ if getattr(ours, f) != getattr(theirs, f)]
    return [f"{kind}: {f} expected {getattr(ours, f)!r}, found {getattr(theirs, f)!r}" for f in changed]
