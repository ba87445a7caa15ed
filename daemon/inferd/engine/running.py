"""The sequences that hold an executor slot and KV blocks."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from inferd.engine.request import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inferd.engine.request import Sequence
    from inferd.engine.shape import EngineShape
    from inferd.plugin.contracts import KVManager


def importance(seq: Sequence) -> tuple[int, float, int]:
    """Order of preemption: the greatest goes last (highest priority, oldest)."""
    return seq.priority, -seq.arrival, -seq.key


class Running:
    """Slots, prefilling and decoding sequences, and which of them gives way."""

    __slots__ = ("_block_size", "_free_slots", "_kv", "decoding", "entered", "held", "left", "prefilling")

    def __init__(self, shape: EngineShape, kv: KVManager) -> None:
        self._kv = kv
        self._block_size = shape.block_size
        self._free_slots = list(range(shape.max_sequences - 1, -1, -1))
        self.prefilling: list[Sequence] = []
        """Highest priority first, then in order of admission."""
        self.decoding: list[Sequence] = []
        """Those not served in the last step first."""
        self.held: list[Sequence] = []
        """Finished rows of a static batch: they keep slot and blocks until the batch ends."""
        self.entered: list[Sequence] = []
        self.left: list[int] = []

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.prefilling
        yield from self.decoding

    @property
    def has_slot(self) -> bool:
        return bool(self._free_slots)

    @property
    def num_growing(self) -> int:
        """Block tables that may still ask for one more block."""
        return sum(len(seq.tables or ()) for seq in self if seq.capacity < seq.limit)

    def enter(self, seq: Sequence) -> None:
        """Give an admitted sequence a slot."""
        assert seq.tables is not None, f"sequence {seq.key} enters without blocks"
        seq.slot = self._free_slots.pop()
        seq.capacity = len(seq.tables[0]) * self._block_size
        seq.phase = Phase.PREFILL
        insort(self.prefilling, seq, key=lambda other: -other.priority)
        self.entered.append(seq)

    def start_decode(self, seq: Sequence) -> None:
        self.prefilling.remove(seq)
        self.decoding.append(seq)
        seq.phase = Phase.DECODE

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all; False when the pool has no block left."""
        tables = self._kv.allocate(seq.key, num_tokens, limit=seq.limit)
        if tables is None:
            return False
        seq.tables = tables
        seq.capacity = len(tables[0]) * self._block_size
        return True

    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        """Give back the blocks past `num_tokens` tokens."""
        assert seq.tables is not None, f"sequence {seq.key} has no blocks"
        self._kv.truncate(seq.key, num_tokens)
        seq.capacity = len(seq.tables[0]) * self._block_size

    def victim(self) -> Sequence | None:
        """Return the least important sequence that is not in flight, never the most important of all."""
        everyone = [*self.prefilling, *self.decoding]
        idle = [seq for seq in everyone if not seq.num_inflight]
        least = min(idle, key=importance, default=None)
        return None if least is max(everyone, key=importance, default=None) else least

    def excess(
        self, weight: Callable[[Sequence], int], most_priority: int, *, share: int, wanted: int
    ) -> list[Sequence]:
        """Return what can give way so that `wanted` is freed, newest first; nobody unless it is enough.

        Clients hold the sum of `weight` of what they run, and keep at least their `share`. What is of a higher
        priority stays.
        """
        held: dict[str, int] = {}
        for seq in self:
            held[seq.client] = held.get(seq.client, 0) + weight(seq)
        victims: list[Sequence] = []
        for seq in sorted(self, key=importance):
            if wanted <= 0:
                break
            rest = held[seq.client] - weight(seq)
            if rest >= share and seq.priority <= most_priority:
                victims.append(seq)
                held[seq.client] = rest
                wanted -= weight(seq)
        return victims if wanted <= 0 else []

    def take_out(self, seq: Sequence) -> None:
        """Stop serving a sequence; it keeps slot and blocks until `release`."""
        (self.decoding if seq.phase is Phase.DECODE else self.prefilling).remove(seq)

    def release(self, seq: Sequence) -> None:
        """Give back slot and blocks."""
        self._kv.free(seq.key, reusable=seq.reusable)
        self.left.append(seq.slot)
        self._free_slots.append(seq.slot)
        seq.slot, seq.tables, seq.capacity, seq.num_computed = -1, None, 0, 0

    def release_held(self) -> bool:
        """Give back what finished rows of a static batch hold; False when there is nothing."""
        held, self.held = self.held, []
        for seq in held:
            self.release(seq)
        return bool(held)
