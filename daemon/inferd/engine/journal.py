"""What happened since somebody last asked: for reports, gauges and the draft model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.plugin.types import DraftOutcome

if TYPE_CHECKING:
    from inferd.engine.batch import Row


class Journal:
    __slots__ = ("_changed", "_dropped", "_outcomes", "num_accepted", "num_preemptions")

    def __init__(self) -> None:
        self.num_preemptions = 0
        self.num_accepted = 0
        """Drafts that became output."""
        self._changed: dict[str, None] = {}
        self._dropped: list[int] = []
        self._outcomes: list[DraftOutcome] = []

    def changed(self, request: str) -> None:
        """Note that a request is in another state now."""
        self._changed[request] = None

    def dropped(self, key: int) -> None:
        """Note that a sequence stopped running: it ended or was preempted."""
        self._dropped.append(key)

    def verified(self, row: Row, num_sampled: int, num_output: int) -> None:
        """Note what became of a row's drafts; those past a stop were accepted for nothing."""
        self.num_accepted += min(num_output, num_sampled - 1)
        self._outcomes.append(DraftOutcome(row.seq.key, len(row.drafts), num_sampled - 1))

    def take_changed(self) -> list[str]:
        changed, self._changed = list(self._changed), {}
        return changed

    def take_dropped(self) -> list[int]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def take_outcomes(self) -> list[DraftOutcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
