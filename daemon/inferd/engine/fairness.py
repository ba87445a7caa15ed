"""The order in which waiting sequences get their turn: priorities with ageing, clients in fair shares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferd.engine.request import Sequence


class DeficitRoundRobin:
    """Share tokens over clients (Shreedhar and Varghese, 1996), with the rounds counted in closed form.

    A client may go while it is not in debt, whatever its next sequence costs: all is charged after the
    fact, as output has to be. So a newcomer with a long prompt need not first wait for as many tokens of
    others; it owes them afterwards. If everybody is in debt, rounds of `quantum` are credited. A client
    without waiting work saves nothing up.
    """

    __slots__ = ("_deficits", "_quantum")

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._deficits: dict[str, int] = {}

    def choose(self, waiting: Collection[str]) -> str:
        """Return whose turn it is among clients with waiting work."""
        for client in waiting:
            self._deficits.setdefault(client, 0)
        chosen, rounds = "", -1
        for client, deficit in self._deficits.items():
            if client in waiting:
                missing = max(0, -(deficit // self._quantum))
                if rounds < 0 or missing < rounds:
                    chosen, rounds = client, missing
                    if not missing:
                        break
        if rounds:
            self._credit(rounds * self._quantum, waiting)
        return chosen

    def _credit(self, tokens: int, waiting: Collection[str]) -> None:
        for client, deficit in list(self._deficits.items()):
            if client in waiting or deficit + tokens < 0:
                self._deficits[client] = deficit + tokens
            else:
                del self._deficits[client]

    def charge(self, client: str, tokens: int) -> None:
        """Take tokens off a client; below zero it is in debt."""
        self._deficits[client] = self._deficits.get(client, 0) - tokens

    def clear(self) -> None:
        """Forget all debts: nobody waits or runs."""
        self._deficits.clear()


class _Lane:
    """Sequences of one client and priority, oldest first."""

    __slots__ = ("client", "priority", "sequences", "served")

    def __init__(self, priority: int, client: str) -> None:
        self.priority = priority
        self.client = client
        self.sequences: OrderedDict[int, Sequence] = OrderedDict()
        self.served = float("-inf")

    @property
    def head(self) -> Sequence:
        return next(iter(self.sequences.values()))

    def level(self, now: float, ageing_s: float) -> int:
        """Priority, raised by one for each `ageing_s` that the lane went without service.

        Counting from the last service, not from arrival, keeps a client's own backlog from
        outranking a newcomer.
        """
        waited = now - max(self.head.arrival, self.served)
        return self.priority + (int(waited / ageing_s) if waited > 0 and ageing_s > 0 else 0)


class WaitingQueue:
    """All waiting sequences. `version` changes with every one that comes or goes."""

    __slots__ = ("_ageing_s", "_lanes", "_shares", "_size", "num_preempted", "version")

    def __init__(self, *, ageing_s: float, quantum: int) -> None:
        self._ageing_s = ageing_s
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._shares = DeficitRoundRobin(quantum)
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
            lane = self._lanes[seq.priority, seq.client] = _Lane(seq.priority, seq.client)
        lane.sequences[seq.key] = seq
        if front:
            lane.sequences.move_to_end(seq.key, last=False)
        self._size += 1
        self.num_preempted += seq.preemptions > 0
        self.version += 1

    def remove(self, seq: Sequence) -> bool:
        """Take out one sequence; False when it does not wait here."""
        lane = self._lanes.get((seq.priority, seq.client))
        if lane is None or lane.sequences.pop(seq.key, None) is None:
            return False
        if not lane.sequences:
            del self._lanes[seq.priority, seq.client]
        self._size -= 1
        self.num_preempted -= seq.preemptions > 0
        self.version += 1
        return True

    def order(self, now: float) -> Iterator[Sequence]:
        """Yield waiting sequences in the order of their turns, best first; none is taken out."""
        passed: dict[tuple[int, str], int] = {}
        while heads := self._heads(now, passed):
            client = self._shares.choose(heads)
            seq = heads[client]
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
                seq = lane.head if not skip else _nth(lane.sequences, skip)
                rival = heads.get(lane.client)
                if rival is None or seq.arrival < rival.arrival:
                    heads[lane.client] = seq
        return heads

    def admit(self, seq: Sequence, now: float) -> None:
        """Take out a sequence that now runs, and charge its client for the prompt."""
        lane = self._lanes[seq.priority, seq.client]
        lane.served = now
        self._shares.charge(seq.client, _cost(seq))
        self.remove(seq)

    def charge(self, client: str, tokens: int) -> None:
        self._shares.charge(client, tokens)

    def clear_debts(self) -> None:
        self._shares.clear()


def _cost(seq: Sequence) -> int:
    """Prompt tokens; nothing for a preempted sequence, which has been charged."""
    return 0 if seq.preemptions else seq.num_tokens


def _nth(sequences: OrderedDict[int, Sequence], index: int) -> Sequence:
    for position, seq in enumerate(sequences.values()):
        if position == index:
            return seq
    raise IndexError(index)
