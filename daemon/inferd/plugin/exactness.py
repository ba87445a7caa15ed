"""How exact the output is with a given set of plugins: as exact as the weakest of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, get_args

from inferd.plugin.types import Exactness

if TYPE_CHECKING:
    from inferd.plugin.contracts import PluginSpec

LEVELS: tuple[Exactness, ...] = get_args(Exactness)
"""Strongest first."""


class Composed(NamedTuple):
    level: Exactness
    by: tuple[str, ...]
    """`KIND NAME` of the plugins that lower it; empty at `bit`."""


def compose(specs: Iterable[PluginSpec]) -> Composed:
    """Return the weakest level over `specs` and who brings it there."""
    specs = list(specs)
    level = LEVELS[max((LEVELS.index(spec.exactness) for spec in specs), default=0)]
    if level == LEVELS[0]:
        return Composed(level, ())
    return Composed(level, tuple(f"{s.kind} {s.name}" for s in specs if s.exactness == level))
