"""Whose prompt is read next: clients in fair shares, of one client the shortest, now and then the oldest of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inferd.engine.fairness import FairShares
    from inferd.engine.request import Sequence

PASSES = 3
"""Steps' worth of other prompts that may pass the oldest one before it is its turn, or one for each client if that is
more: so it gets a quarter of the steps, or its client's share of them."""

Rank = tuple[int, bool, int, int]
"""Less goes first: priority, whether it may still be passed, what was computed for the client, what is left."""


class Turns:
    """The prompts that one step may read on.

    Of equal ones the oldest goes first: to read two side by side would delay the first and not help the second.
    """

    __slots__ = ("_least", "_oldest", "_order", "_passes", "_pending", "_shares")

    def __init__(self, prefilling: Iterable[Sequence], shares: FairShares, room: int) -> None:
        """`prefilling`: of a priority the oldest first; `room`: tokens that the step takes."""
        self._shares = shares
        self._pending: dict[str, int] = {}
        """Prompt tokens by client that were charged, but are not computed yet."""
        unread = [seq for seq in prefilling if seq.num_left > 0]
        self._oldest: dict[int, Sequence] = {}
        for seq in unread:
            self.enter(seq)
            self._oldest.setdefault(seq.priority, seq)
        self._least = min(map(self._computed, self._pending), default=0)
        self._passes = max(PASSES, len(self._pending)) * room
        ranked = [(self._rank(seq, seq.priority), index) for index, seq in enumerate(unread)]
        self._order = [(rank, unread[index]) for rank, index in sorted(ranked, reverse=True)]
        """Whose turn it is comes last."""

    def is_before(self, waiting: Sequence, level: int) -> bool:
        """Say whether one that waits, at a priority of `level` by now, comes before all that are being read."""
        return not self._order or self._rank(waiting, level) < self._order[-1][0]

    def enter(self, seq: Sequence) -> None:
        """Note that one that waited has come in: its prompt was charged."""
        self._pending[seq.client] = self._pending.get(seq.client, 0) + seq.num_uncomputed

    def take(self) -> Sequence | None:
        """Take out whose turn it is; None = nobody is left."""
        return self._order.pop()[1] if self._order else None

    def read(self, seq: Sequence, tokens: int) -> None:
        """Note what a sequence got."""
        seq.passed = 0
        oldest = self._oldest.get(seq.priority)
        if oldest is not None and oldest is not seq:
            oldest.passed += tokens

    def _rank(self, seq: Sequence, level: int) -> Rank:
        return -level, seq.passed < self._passes, self._computed(seq.client), seq.num_left

    def _computed(self, client: str) -> int:
        """Return what was computed for a client; for one of which nothing is being read, as if for the least served."""
        if client in self._pending:
            return self._shares.served(client) - self._pending[client]
        return self._least + self._shares.owed(client)
