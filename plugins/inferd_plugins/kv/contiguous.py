"""The baseline that reserves: consecutive blocks for a sequence's full length, held from admission on.

What paging is measured against: room is wasted inside a reservation (the output may end early) and
between reservations (a free run may be too short).
"""

from __future__ import annotations

from inferd.plugin.contracts import BlockTables
from inferd_plugins.kv.extents import Extents
from inferd_plugins.kv.uncached import UncachedKV


class ContiguousKV(UncachedKV[Extents]):
    def _pool(self, num_blocks: int) -> Extents:
        return Extents(num_blocks)

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = self._tables.get(key) or [[] for _ in self._pools]
        blocks = -(-max(num_tokens, limit) // self._block_size)
        taken: list[tuple[int, int, int]] = []
        for group, table in enumerate(tables):
            start = self._take(group, table, blocks - len(table))
            if start is None:
                for done, at, length in taken:
                    self._pools[done].give(at, length)
                return None
            if blocks > len(table):
                taken.append((group, start, blocks - len(table)))
        for group, start, length in taken:
            tables[group].extend(range(start, start + length))
        self._tables[key] = tables
        return tables

    def _take(self, group: int, table: list[int], length: int) -> int | None:
        """Take a first run, or the one right behind what the sequence has."""
        if length <= 0:
            return 0
        if not table:
            return self._pools[group].take(length)
        return table[-1] + 1 if self._pools[group].take_at(table[-1] + 1, length) else None

    def truncate(self, key: int, num_tokens: int) -> None:
        """The reservation stays: that is what this manager is."""

    def free(self, key: int, *, reusable: bool = True) -> None:
        for table, pool in zip(self._tables.pop(key), self._pools, strict=True):
            if table:
                pool.give(table[0], len(table))

    def problems(self) -> list[str]:
        """Name every broken invariant (for tests)."""
        found = []
        for group, pool in enumerate(self._pools):
            held = [b for tables in self._tables.values() for b in tables[group]]
            free = [b for start, length in pool.runs for b in range(start, start + length)]
            if sorted(held + free) != list(range(pool.num_blocks)):
                found.append(f"group {group}: held {sorted(held)} and free {free} are not the pool")
            if any(sum(a) >= b[0] for a, b in zip(pool.runs, pool.runs[1:], strict=False)):
                found.append(f"group {group}: free runs {pool.runs} touch or overlap")
        return found
