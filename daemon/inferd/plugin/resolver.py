"""Choose one plugin of each kind for a model: ordered, deterministic, with reasons.

Kinds are settled in the order of `KINDS`; each probe sees the earlier choices. Within a kind: who
can serve (declared capabilities, then `probe`), then the user's pin, then priority, then name. A
choice that leaves a later kind without any plugin is taken back, so a solution is found if there is
one; if there is none, the error names a smallest set of pins that cannot be served together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, cast

from inferd.plugin.candidates import Candidate, candidates
from inferd.plugin.errors import ConflictError
from inferd.plugin.listing import listing
from inferd.plugin.resolution import Choice, Rejected, Resolution
from inferd.plugin.types import KINDS, Kind, ModelSpec, ProbeContext, Reject

if TYPE_CHECKING:
    from inferd.plugin.contracts import Architecture
    from inferd.plugin.manager import PluginManager
    from inferd.plugin.options import OptionTables

SpecReader = Callable[["Architecture"], ModelSpec]
"""Reads the checkpoint's configuration with the chosen architecture; its errors are passed on."""


def resolve(
    manager: PluginManager,
    context: ProbeContext,
    pins: Mapping[Kind, str],
    spec_reader: SpecReader,
    *,
    options: OptionTables | None = None,
) -> Resolution:
    """Return the chosen plugins.

    `pins` names the user's own choices; empty names are none. Raises UnknownPluginError when a
    named plugin is missing or fails, OptionsError for a bad options table, ConflictError when no
    choice serves the model; what `spec_reader` raises is passed on.
    """
    tables = options or {}
    named: dict[Kind, str] = {kind: name for kind, name in pins.items() if name}
    search = _Search(candidates(manager, named, tables), spec_reader)
    choices = search.run(context)
    if choices is None:
        raise _conflict(manager, context, named, spec_reader, tables)
    search.ask_the_rest(choices)
    resolution = Resolution(
        choices=choices,
        model=cast("ModelSpec", search.context.spec),
        rejected=tuple(_rejected(manager, choices, search)),
        failures={c.entry.key: c.failure for of_kind in search.candidates.values() for c in of_kind if c.failure},
    )
    return replace(resolution, listing=tuple(listing(manager, resolution)))


class _Search:
    """One depth-first search over the kinds."""

    def __init__(self, of_kind: Mapping[Kind, list[Candidate]], spec_reader: SpecReader) -> None:
        self.candidates = of_kind
        self.rejections: dict[tuple[Kind, str], tuple[str, ...]] = {}
        self.dead_end: Kind = KINDS[0]
        """The furthest kind that could not be settled."""
        self._contexts: dict[Kind, ProbeContext] = {}
        """What the probes of each kind saw on the way that was taken last."""
        self._spec_reader = spec_reader

    def run(self, context: ProbeContext) -> dict[Kind, Choice] | None:
        """Return a choice for every kind, or None; `context` then holds all that is known."""
        self.context = context
        return self._settle(0, context, {})

    def ask_the_rest(self, choices: Mapping[Kind, Choice]) -> None:
        """Probe those that a preferred plugin spared us, only to be able to say why they would not do."""
        for kind, of_kind in self.candidates.items():
            for candidate in of_kind:
                spec = candidate.entry.spec
                if spec is choices[kind].spec or (kind, spec.name) in self.rejections:
                    continue
                verdict = candidate.verdict(self._contexts[kind])
                if isinstance(verdict, Reject):
                    self.rejections[kind, spec.name] = verdict.reasons

    def _settle(self, depth: int, context: ProbeContext, chosen: dict[Kind, Choice]) -> dict[Kind, Choice] | None:
        if depth == len(KINDS):
            self.context = context
            return chosen
        kind = KINDS[depth]
        self._contexts[kind] = context
        for candidate in self.candidates[kind]:
            found = self._try(depth, candidate, context, chosen)
            if found:
                return found
        if KINDS.index(self.dead_end) < depth:
            self.dead_end = kind
        return None

    def _try(
        self, depth: int, candidate: Candidate, context: ProbeContext, chosen: dict[Kind, Choice]
    ) -> dict[Kind, Choice] | None:
        spec, verdict = candidate.entry.spec, candidate.verdict(context)
        if isinstance(verdict, Reject):
            self.rejections[spec.kind, spec.name] = verdict.reasons
            return None
        choice = _choice(candidate, verdict.note)
        found = self._settle(depth + 1, self._advance(context, choice), {**chosen, spec.kind: choice})
        if found is None:
            self.rejections[spec.kind, spec.name] = (f"leaves no {self.dead_end} plugin that can serve",)
        return found

    def _advance(self, context: ProbeContext, choice: Choice) -> ProbeContext:
        kind = choice.spec.kind
        model = context.spec
        if kind == "architecture":
            model = self._spec_reader(cast("Architecture", choice.object))
        return replace(context, spec=model, chosen={**context.chosen, kind: choice.spec.name})


def _choice(candidate: Candidate, note: str) -> Choice:
    assert candidate.cls is not None
    entry = candidate.entry
    return Choice(entry.spec, entry.source, candidate.cls, candidate.options, candidate.named, note)


def _rejected(manager: PluginManager, choices: Mapping[Kind, Choice], search: _Search) -> list[Rejected]:
    """Explain every known plugin that was not chosen."""
    losers: list[Rejected] = []
    for entry in manager.entries:
        spec, choice = entry.spec, choices[entry.spec.kind]
        if spec is choice.spec:
            continue
        said = search.rejections.get((spec.kind, spec.name), (_outranked(spec.priority, choice),))
        losers.append(
            Rejected(spec.kind, spec.name, said if entry.state == "available" else (f"{entry.state}: {entry.why}",))
        )
    return sorted(losers, key=lambda r: (KINDS.index(r.kind), r.name))


def _outranked(priority: int, choice: Choice) -> str:
    winner = choice.spec
    if choice.pinned:
        return f"you named {winner.name!r}"
    if priority < winner.priority:
        return f"priority {priority}, {winner.name!r} has {winner.priority}"
    return f"same priority as {winner.name!r}, which comes first by name"


def _conflict(
    manager: PluginManager,
    context: ProbeContext,
    pins: Mapping[Kind, str],
    spec_reader: SpecReader,
    tables: OptionTables,
) -> ConflictError:
    """Find a smallest set of pins that has no solution, and say what rejects what."""
    ordered: list[Kind] = [kind for kind in KINDS if kind in pins]
    for size in range(len(ordered) + 1):
        for kinds in combinations(ordered, size):
            kept: dict[Kind, str] = {kind: pins[kind] for kind in kinds}
            search = _Search(candidates(manager, kept, tables), spec_reader)
            if search.run(context) is None:
                return ConflictError(_message(kept, search), tuple(f"{k}={n}" for k, n in kept.items()))
    raise AssertionError("all pins together have no solution, so the last set has none")


def _message(pins: Mapping[Kind, str], search: _Search) -> str:
    named = " and ".join(f"plugins.{kind} = {name!r}" for kind, name in pins.items())
    if not pins:
        head = f"no {search.dead_end} plugin can serve this model"
    elif len(pins) == 1:
        head = f"{named} cannot serve this model"
    else:
        head = f"{named} cannot be used together"
    said = [f"{k} {n}: {'; '.join(why)}" for (k, n), why in search.rejections.items()]
    return f"{head} ({', '.join(said) or f'no {search.dead_end} plugin is installed'})"
