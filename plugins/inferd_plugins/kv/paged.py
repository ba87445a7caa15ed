"""Paged KV with a prefix cache: block tables of any length, shared where prompts begin alike.

Paging after "Efficient Memory Management for LLM Serving with PagedAttention" (Kwon et al., 2023);
full blocks are found again by a hash chain whose token ids are compared on every hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferd.plugin.contracts import BlockTables, KVGroupSize, KVManager, KVStats
from inferd_plugins.kv import chain
from inferd_plugins.kv.pool import BlockPool

NO_BLOCK = -1
"""Table entry of a block that lies behind a group's window."""


class _Held:
    """What one sequence holds, and how far its tokens are known."""

    __slots__ = ("hits", "keys", "queries", "tables", "tokens")

    def __init__(self, num_groups: int, root: bytes) -> None:
        self.tables: BlockTables = [[] for _ in range(num_groups)]
        self.tokens: list[int] = []
        self.keys = [root]
        self.queries = 0
        self.hits = 0

    @property
    def num_full(self) -> int:
        """Blocks whose key is known."""
        return len(self.keys) - 1


class PagedKV(KVManager):
    """One pool of blocks per KV group; tables grow block by block."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._pools: list[BlockPool] = []
        self._windows: list[int | None] = []
        self._has_window = False
        self._held: dict[int, _Held] = {}
        self._block_size = 1
        self._prefix_cache = False
        self._queries = 0
        self._hits = 0

    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        self._pools = [BlockPool(group.num_blocks) for group in groups]
        self._windows = [group.window for group in groups]
        self._has_window = any(window is not None for window in self._windows)
        self._block_size = block_size
        self._prefix_cache = prefix_cache

    def match(self, key: int, tokens: Sequence[int], *, domain: str = "") -> int:
        if key in self._held:
            raise ValueError(f"sequence {key} already holds blocks")
        held = self._held[key] = _Held(len(self._pools), chain.root(domain))
        held.queries = len(tokens)
        if self._prefix_cache and tokens:
            self._attach(held, tokens, domain)
        held.hits = len(held.tokens)
        return held.hits

    def _attach(self, held: _Held, tokens: Sequence[int], domain: str) -> None:
        """Walk the chain; the hit is the longest prefix whose needed blocks every group still has."""
        size = self._block_size
        found: BlockTables = [[] for _ in self._pools]
        keys = list(held.keys)
        runs = [0] * len(self._pools)
        best = 0
        for index, (key, block_tokens) in enumerate(
            chain.full_blocks(domain, tokens, size, (len(tokens) - 1) // size), start=1
        ):
            serves = True
            for group, pool in enumerate(self._pools):
                block = pool.find(key, block_tokens)
                found[group].append(NO_BLOCK if block is None else block)
                runs[group] = 0 if block is None else runs[group] + 1
                serves = serves and runs[group] >= index - self._first_needed(group, index * size)
            keys.append(key)
            if serves:
                best = index
            elif any(run < index and window is None for run, window in zip(runs, self._windows, strict=True)):
                break
        held.keys = keys[: best + 1]
        held.tokens = list(tokens[: best * size])
        for group, pool in enumerate(self._pools):
            first = self._first_needed(group, best * size)
            held.tables[group] = [NO_BLOCK] * first + found[group][first:best]
            for block in found[group][first:best]:
                pool.share(block)

    def _first_needed(self, group: int, num_computed: int) -> int:
        """Return the first block that a query at position `num_computed` or later can still see."""
        window = self._windows[group]
        return 0 if window is None else max(0, num_computed - window + 1) // self._block_size

    def allocate(self, key: int, num_tokens: int, *, limit: int) -> BlockTables | None:
        held = self._held.get(key)
        have = [len(table) for table in held.tables] if held else [0] * len(self._pools)
        blocks = -(-num_tokens // self._block_size)
        if any(blocks - n > pool.num_free for n, pool in zip(have, self._pools, strict=True)):
            return None
        if held is None:
            held = self._held[key] = _Held(len(self._pools), chain.root(""))
        for table, pool in zip(held.tables, self._pools, strict=True):
            table.extend([pool.take() for _ in range(blocks - len(table))])
        self._queries += held.queries
        self._hits += held.hits
        held.queries = held.hits = 0
        return held.tables

    def append(self, key: int, tokens: Sequence[int]) -> None:
        held = self._held[key]
        held.tokens.extend(tokens)
        if len(held.tokens) // self._block_size >= len(held.keys):
            self._seal(held)
        if self._has_window:
            self._drop_behind(held)

    def _seal(self, held: _Held) -> None:
        """Give keys to the blocks that became full, so that others can find them."""
        size = self._block_size
        for index in range(held.num_full, len(held.tokens) // size):
            block_tokens = tuple(held.tokens[index * size : (index + 1) * size])
            key = chain.extend(held.keys[index], block_tokens) if self._prefix_cache else b""
            held.keys.append(key)
            if self._prefix_cache:
                for table, pool in zip(held.tables, self._pools, strict=True):
                    if table[index] != NO_BLOCK:
                        pool.remember(table[index], key, block_tokens)

    def _drop_behind(self, held: _Held) -> None:
        """Release the blocks that no later query of a windowed group can see."""
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            table, pool = held.tables[group], self._pools[group]
            index = self._first_needed(group, len(held.tokens)) - 1
            while index >= 0 and table[index] != NO_BLOCK:
                pool.release(table[index])
                table[index] = NO_BLOCK
                index -= 1

    def truncate(self, key: int, num_tokens: int) -> None:
        held = self._held[key]
        keep = -(-num_tokens // self._block_size)
        reopened = num_tokens // self._block_size
        if reopened < min(held.num_full, keep):
            self._reopen(held, reopened)
        for table, pool in zip(held.tables, self._pools, strict=True):
            _release(pool, table[keep:])
            del table[keep:]
        del held.tokens[num_tokens:]
        del held.keys[reopened + 1 :]

    def _reopen(self, held: _Held, index: int) -> None:
        """Make a full block writable again: nobody may read or find it. Raises ValueError when shared."""
        for table, pool in zip(held.tables, self._pools, strict=True):
            if table[index] == NO_BLOCK:
                raise ValueError(f"block {index} of the sequence lies behind the window and is gone")
            if pool.refs(table[index]) > 1:
                raise ValueError(f"block {index} of the sequence is shared and cannot be cut")
        for table, pool in zip(held.tables, self._pools, strict=True):
            pool.forget(table[index])

    def free(self, key: int, *, reusable: bool = True) -> None:
        held = self._held.pop(key)
        for table, pool in zip(held.tables, self._pools, strict=True):
            if not reusable:
                for block in table:
                    if block != NO_BLOCK:
                        pool.forget(block)
            _release(pool, table)

    def stats(self) -> KVStats:
        total = free = cached = 0
        for pool in self._pools:
            total += pool.num_blocks
            free += pool.num_free
            cached += pool.num_cached
        return KVStats(total, free, cached, self._queries, self._hits)

    def problems(self) -> list[str]:
        """Name every broken invariant over all groups and sequences (for tests)."""
        found = [text for pool in self._pools for text in pool.problems()]
        for group, pool in enumerate(self._pools):
            holders = [0] * pool.num_blocks
            for held in self._held.values():
                for block in held.tables[group]:
                    if block != NO_BLOCK:
                        holders[block] += 1
            found += [
                f"block {b} of group {group}: {pool.refs(b)} references, {n} holders"
                for b, n in enumerate(holders)
                if pool.refs(b) != n
            ]
        return found


def _release(pool: BlockPool, blocks: list[int]) -> None:
    """Release a run of blocks, the last first: then the end of a prefix is recycled before its start."""
    for block in reversed(blocks):
        if block != NO_BLOCK:
            pool.release(block)
