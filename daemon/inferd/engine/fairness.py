"""The order in which waiting sequences get their turn: priorities with ageing, clients in fair shares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd.engine.request import Sequence


OUTPUT_WEIGHT = 2
"""Prompt tokens that an output token counts as: it needs a step of its own (so Sheng et al. 2024, too)."""


class FairShares:
    """Tokens served to each client; who had least goes first (start-time fair queueing, Goyal et al. 1996).

    A prompt is charged when it enters and output as it is generated, so a newcomer with a long prompt need
    not first wait for as many tokens of others; it owes them afterwards. Who comes anew starts from
    where the last one chosen stood: a client without waiting work saves nothing up.
    """

    __slots__ = ("_now", "_served")

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._now = 0
        """Where the last client stood when it was chosen."""

    def __len__(self) -> int:
        return len(self._served)

    def served(self, client: str) -> int:
        return max(self._now, self._served.get(client, 0))

    def owed(self, client: str) -> int:
        """Return what a client had beyond where the last one chosen stood."""
        return self.served(client) - self._now

    def start(self, client: str) -> None:
        """Note that a chosen client gets its turn."""
        self._now = self.served(client)
        self._served = {name: tokens for name, tokens in self._served.items() if tokens > self._now}

    def charge(self, client: str, tokens: int) -> None:
        self._served[client] = self.served(client) + tokens

    def clear(self) -> None:
        """Forget all: nobody waits or runs."""
        self._served.clear()
        self._now = 0


class _Lane:
    """Sequences of one client and priority, oldest first. Shorter ones may pass, so far and so often."""

    __slots__ = ("_next", "_skip_ahead", "client", "priority", "sequences", "served")

    def __init__(self, priority: int, client: str, skip_ahead: int) -> None:
        self.priority = priority
        self.client = client
        self.sequences: OrderedDict[int, Sequence] = OrderedDict()
        self.served = float("-inf")
        self._skip_ahead = skip_ahead
        self._next: list[Sequence] = []
        """Those whose turn comes next, in that order; empty = not known."""

    @property
    def oldest(self) -> Sequence:
        return next(iter(self.sequences.values()))

    def push(self, seq: Sequence, *, front: bool) -> None:
        self.sequences[seq.key] = seq
        if front:
            self.sequences.move_to_end(seq.key, last=False)
        self._next = []

    def remove(self, seq: Sequence) -> bool:
        self._next = []
        return self.sequences.pop(seq.key, None) is not None

    def at(self, index: int) -> Sequence:
        """Return the one whose turn comes after `index` others: the shortest first of the oldest few, then by age."""
        if not self._next:
            self._next = list(islice(self.sequences.values(), self._skip_ahead + 1))
            oldest = self._next[0]
            if oldest.skips < self._skip_ahead and not oldest.preemptions:
                self._next.sort(key=lambda seq: seq.num_uncomputed)
        if index < len(self._next):
            return self._next[index]
        return next(islice(self.sequences.values(), index, None))

    def level(self, now: float, ageing_s: float) -> int:
        """Priority, raised by one for each `ageing_s` that the lane went without service.

        Counting from the last service, not from arrival, keeps a client's own backlog from
        outranking a newcomer.
        """
        waited = now - max(self.oldest.arrival, self.served)
        return self.priority + (int(waited / ageing_s) if waited > 0 and ageing_s > 0 else 0)


class WaitingQueue:
    """All waiting sequences. `version` changes with every one that comes or goes."""

    __slots__ = ("_ageing_s", "_lanes", "_size", "_skip_ahead", "num_preempted", "shares", "version")

    def __init__(self, *, ageing_s: float, skip_ahead: int = 0) -> None:
        self._ageing_s = ageing_s
        self._skip_ahead = skip_ahead
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self.shares = FairShares()
        self._size = 0
        self.version = 0
        self.num_preempted = 0
        """Waiting sequences that ran before."""

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        for lane in self._lanes.values():
            yield from lane.sequences.values()

    def push(self, seq: Sequence, *, front: bool = False) -> None:
        lane = self._lanes.get((seq.priority, seq.client))
        if lane is None:
            lane = self._lanes[seq.priority, seq.client] = _Lane(seq.priority, seq.client, self._skip_ahead)
        lane.push(seq, front=front)
        self._size += 1
        self.num_preempted += seq.preemptions > 0
        self.version += 1

    def remove(self, seq: Sequence) -> bool:
        """Take out one sequence; False when it does not wait here."""
        lane = self._lanes.get((seq.priority, seq.client))
        if lane is None or not lane.remove(seq):
            return False
        if not lane.sequences:
            del self._lanes[seq.priority, seq.client]
        self._size -= 1
        self.num_preempted -= seq.preemptions > 0
        self.version += 1
        return True

    def order(self, now: float) -> Iterator[Sequence]:
        """Yield waiting sequences in the order of their turns, best first; none is taken out.

        Of a level, who was served least comes first, of equal ones the shortest.
        """
        passed: dict[tuple[int, str], int] = {}
        while heads := self._heads(now, passed):
            seq = min(heads.values(), key=lambda seq: (self.shares.served(seq.client), seq.num_uncomputed))
            passed[seq.priority, seq.client] = passed.get((seq.priority, seq.client), 0) + 1
            yield seq

    def _heads(self, now: float, passed: dict[tuple[int, str], int]) -> dict[str, Sequence]:
        """Return, by client, the first sequence not passed yet at the best level that has any."""
        best: int | None = None
        heads: dict[str, Sequence] = {}
        for at, lane in self._lanes.items():
            skip = passed.get(at, 0)
            if skip >= len(lane.sequences):
                continue
            level = lane.level(now, self._ageing_s)
            if best is None or level > best:
                best, heads = level, {}
            if level == best:
                seq = lane.at(skip)
                rival = heads.get(lane.client)
                if rival is None or seq.arrival < rival.arrival:
                    heads[lane.client] = seq
        return heads

    def level(self, seq: Sequence, now: float) -> int:
        """Return the priority that a waiting sequence has by now."""
        return self._lanes[seq.priority, seq.client].level(now, self._ageing_s)

    def oldest(self, seq: Sequence) -> Sequence:
        """Return who of its client and priority waits longest."""
        return self._lanes[seq.priority, seq.client].oldest

    def clients(self) -> set[str]:
        return {lane.client for lane in self._lanes.values()}

    def admit(self, seq: Sequence, now: float) -> None:
        """Take out a sequence that now runs, and charge its client for the prompt tokens to compute."""
        lane = self._lanes[seq.priority, seq.client]
        lane.served = now
        self.shares.start(seq.client)
        if not seq.preemptions:  # else it has been charged
            self.shares.charge(seq.client, max(1, seq.num_uncomputed))
        self.remove(seq)
