"""No speculation: the baseline of every draft model."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.plugin.contracts import DraftContext, DraftModel
from inferd.plugin.types import DraftSequence


class NoDraft(DraftModel):
    active = False

    def bind(self, context: DraftContext) -> None:
        """Needs nothing."""

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [[] for _ in sequences]
