"""Drive a KV manager as the scheduler does, with a model of what every slot then holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferd.plugin.conformance.report import NonconformanceError, Subject
from inferd.plugin.contracts import BlockTables, KVManager
from inferd.plugin.types import KVGroupSize

Content = tuple[str, tuple[int, ...]]
"""What a slot holds: KV of the last token of this prefix, in this domain."""


@dataclass(slots=True)
class Live:
    """A sequence that the manager knows."""

    domain: str
    limit: int
    tokens: list[int]
    computed: int = 0
    """Tokens whose KV is in the blocks; the rest of `tokens` has room at most."""
    tables: BlockTables = field(default_factory=list)


class KVRig:
    """One manager over `num_blocks` blocks of four tokens; every call is followed by all invariants."""

    def __init__(
        self,
        subject: Subject,
        num_blocks: int = 12,
        *,
        prefix_cache: bool = True,
        windows: tuple[int | None, ...] = (None,),
        block_size: int = 4,
    ) -> None:
        self.manager: KVManager = subject.make()
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.windows = windows
        self.groups = len(windows)
        self.live: dict[int, Live] = {}
        self.slots: dict[tuple[int, int, int], Content] = {}
        self.manager.bind([KVGroupSize(num_blocks, w) for w in windows], block_size, prefix_cache=prefix_cache)
        self._next_key = 0

    def start(self, tokens: Sequence[int], *, domain: str = "", limit: int = 0) -> int | None:
        """Match, allocate and compute a new sequence; its key, or None when it does not fit."""
        key = self.admit(tokens, domain=domain, limit=limit)
        if key is not None:
            self.compute(key)
        return key

    def admit(self, tokens: Sequence[int], *, domain: str = "", limit: int = 0) -> int | None:
        """Match and allocate a new sequence; its key, or None when it does not fit."""
        key = self._next_key = self._next_key + 1
        live = Live(domain, max(limit, len(tokens)), list(tokens))
        live.computed = self.manager.match(key, tuple(tokens), domain=domain)
        if not 0 <= live.computed < len(tokens):
            raise NonconformanceError(f"match returned {live.computed} for a prompt of {len(tokens)} tokens")
        tables = self.manager.allocate(key, len(tokens), limit=live.limit)
        if tables is None:
            self.manager.free(key)
            self.check()
            return None
        live.tables = tables
        self.live[key] = live
        self.check()
        return key

    def extend(self, key: int, tokens: Sequence[int]) -> bool:
        """Make room for more tokens (not computed yet); False, and no change, when there is none."""
        live = self.live[key]
        tables = self.manager.allocate(key, len(live.tokens) + len(tokens), limit=live.limit)
        if tables is not None:
            live.tables = tables
            live.tokens += tokens
        self.check()
        return tables is not None

    def compute(self, key: int, count: int | None = None) -> None:
        """Write the KV of the next `count` tokens and tell the manager."""
        live = self.live[key]
        stop = len(live.tokens) if count is None else live.computed + count
        for position in range(live.computed, stop):
            self._write(key, live, position)
        fresh = live.tokens[live.computed : stop]
        live.computed = stop
        self.manager.append(key, fresh)
        self.check()

    def write_only(self, key: int) -> None:
        """Write the KV of all tokens with room without telling the manager: drafts being verified."""
        live = self.live[key]
        for position in range(live.computed, len(live.tokens)):
            self._write(key, live, position)

    def _write(self, key: int, live: Live, position: int) -> None:
        for group, slot in enumerate(self._slots(live, position)):
            block = slot[1]
            for other, owner in self.live.items():
                if other != key and block in owner.tables[group][: self._blocks(len(owner.tokens))]:
                    raise NonconformanceError(f"block {block} is written by one sequence and held by another")
            self.slots[slot] = (live.domain, tuple(live.tokens[: position + 1]))

    def truncate(self, key: int, length: int) -> None:
        """Keep the first `length` tokens."""
        live = self.live[key]
        self.manager.truncate(key, length)
        del live.tokens[length:]
        live.computed = min(live.computed, length)
        live.tables = [table[: self._blocks(length)] for table in live.tables]
        self.check()

    def free(self, key: int, *, reusable: bool = True) -> None:
        self.manager.free(key, reusable=reusable)
        del self.live[key]
        self.check()

    def free_all(self) -> None:
        for key in list(self.live):
            self.free(key)

    def check(self) -> None:
        """Hold all invariants against the model. Raises NonconformanceError."""
        self._check_stats()
        for key, live in self.live.items():
            self._check_table(key, live)
            self._check_content(key, live)

    def _check_stats(self) -> None:
        stats = self.manager.stats()
        total = self.num_blocks * self.groups
        if stats.total_blocks not in (self.num_blocks, total):
            raise NonconformanceError(f"stats: total_blocks {stats.total_blocks} of {total}")
        if not 0 <= stats.cached_blocks <= stats.free_blocks <= stats.total_blocks:
            raise NonconformanceError(f"stats do not add up: {stats}")
        tables = [(g, t) for live in self.live.values() for g, t in enumerate(live.tables)]
        held = len({(g, b) for g, table in tables for b in table if b >= 0})
        if stats.total_blocks == total and stats.free_blocks + held > total:
            raise NonconformanceError(f"{held} blocks are held and {stats.free_blocks} free, of {total}")

    def _check_table(self, key: int, live: Live) -> None:
        if len(live.tables) != self.groups:
            raise NonconformanceError(f"{len(live.tables)} tables for {self.groups} groups")
        for group, table in enumerate(live.tables):
            if len(table) < self._blocks(len(live.tokens)):
                raise NonconformanceError(f"table of {len(table)} blocks for {len(live.tokens)} tokens")
            needed = table[self._first_needed(group, live) // self.block_size :]
            if len(set(needed)) != len(needed):
                raise NonconformanceError(f"sequence {key} has a block twice: {table}")
            if not all(0 <= block < self.num_blocks for block in needed):
                raise NonconformanceError(f"sequence {key} has a block that does not exist: {table}")

    def _check_content(self, key: int, live: Live) -> None:
        for position in range(live.computed):
            want = (live.domain, tuple(live.tokens[: position + 1]))
            for group, slot in enumerate(self._slots(live, position)):
                if position >= self._first_needed(group, live) and self.slots.get(slot) != want:
                    raise NonconformanceError(
                        f"sequence {key}, position {position}: block {slot[1]} holds KV of "
                        f"{self.slots.get(slot)}, not of {want}"
                    )

    def _first_needed(self, group: int, live: Live) -> int:
        """Return the first position that a token computed from now on can see."""
        window = self.windows[group]
        return 0 if window is None else max(0, live.computed - window + 1)

    def _slots(self, live: Live, position: int) -> list[tuple[int, int, int]]:
        index, offset = divmod(position, self.block_size)
        return [(group, table[index], offset) for group, table in enumerate(live.tables)]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def free_blocks(self) -> int:
        return self.manager.stats().free_blocks

    @property
    def total_blocks(self) -> int:
        return self.manager.stats().total_blocks
