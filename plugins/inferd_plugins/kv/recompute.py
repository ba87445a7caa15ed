"""The baseline without a KV cache: every token is made from the whole sequence again.

Attention still reads keys and values from blocks, so a sequence holds blocks for one pass; the
scheduler gives them back after each sampled token (`retains` is False).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferd.plugin.contracts import BlockTables, KVGroupSize, KVManager, KVStats
from inferd_plugins.kv.pool import BlockPool


class RecomputeKV(KVManager):
    retains = False

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._pools: list[BlockPool] = []
        self._tables: dict[int, BlockTables] = {}
        self._block_size = 1

    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        self._pools = [BlockPool(group.num_blocks) for group in groups]
        self._block_size = block_size

    def match(self, key: int, tokens: Sequence[int], *, domain: str = "") -> int:
        if key in self._tables:
            raise ValueError(f"sequence {key} already holds blocks")
        self._tables[key] = [[] for _ in self._pools]
        return 0

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = self._tables.get(key) or [[] for _ in self._pools]
        blocks = -(-num_tokens // self._block_size)
        if any(blocks - len(t) > pool.num_free for t, pool in zip(tables, self._pools, strict=True)):
            return None
        for table, pool in zip(tables, self._pools, strict=True):
            table.extend([pool.take() for _ in range(blocks - len(table))])
        self._tables[key] = tables
        return tables

    def append(self, key: int, tokens: Sequence[int]) -> None:
        """Nothing is kept."""

    def truncate(self, key: int, num_tokens: int) -> None:
        keep = -(-num_tokens // self._block_size)
        for table, pool in zip(self._tables[key], self._pools, strict=True):
            for block in reversed(table[keep:]):
                pool.release(block)
            del table[keep:]

    def free(self, key: int, *, reusable: bool = True) -> None:
        for table, pool in zip(self._tables.pop(key), self._pools, strict=True):
            for block in reversed(table):
                pool.release(block)

    def stats(self) -> KVStats:
        total = sum(pool.num_blocks for pool in self._pools)
        return KVStats(total, sum(pool.num_free for pool in self._pools), 0, 0, 0)

    def problems(self) -> list[str]:
        """Name every broken invariant (for tests)."""
        found = [text for pool in self._pools for text in pool.problems()]
        for group, pool in enumerate(self._pools):
            held = [b for tables in self._tables.values() for b in tables[group]]
            if len(set(held)) != len(held) or len(held) + pool.num_free != pool.num_blocks:
                found.append(f"group {group}: {len(held)} held and {pool.num_free} free of {pool.num_blocks}")
        return found
