"""The baseline without a KV cache: every token is made from the whole sequence again.

Attention still reads keys and values from blocks, so a sequence holds blocks for one pass; the
scheduler gives them back after each sampled token (`retains` is False).
"""

from __future__ import annotations

from inferd.plugin.contracts import BlockTables
from inferd_plugins.kv.pool import BlockPool
from inferd_plugins.kv.uncached import UncachedKV


class RecomputeKV(UncachedKV[BlockPool]):
    retains = False

    def _pool(self, num_blocks: int) -> BlockPool:
        return BlockPool(num_blocks)

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        tables = self._tables.get(key) or [[] for _ in self._pools]
        blocks = -(-num_tokens // self._block_size)
        if any(blocks - len(t) > pool.num_free for t, pool in zip(tables, self._pools, strict=True)):
            return None
        for table, pool in zip(tables, self._pools, strict=True):
            table.extend([pool.take() for _ in range(blocks - len(table))])
        self._tables[key] = tables
        return tables

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

    def problems(self) -> list[str]:
        """Name every broken invariant (for tests)."""
        found = [text for pool in self._pools for text in pool.problems()]
        for group, pool in enumerate(self._pools):
            held = [b for tables in self._tables.values() for b in tables[group]]
            if len(set(held)) != len(held) or len(held) + pool.num_free != pool.num_blocks:
                found.append(f"group {group}: {len(held)} held and {pool.num_free} free of {pool.num_blocks}")
        return found
