"""What the managers without a prefix cache share: pools by group, tables by sequence, nothing to find."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from inferd.plugin.contracts import BlockTables, KVGroupSize, KVManager, KVStats


class Pool(Protocol):
    num_blocks: int

    @property
    def num_free(self) -> int: ...


P = TypeVar("P", bound=Pool)


class UncachedKV(KVManager, Generic[P]):
    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._pools: list[P] = []
        self._tables: dict[int, BlockTables] = {}
        self._block_size = 1

    @abstractmethod
    def _pool(self, num_blocks: int) -> P:
        """Make the pool of one group."""

    def bind(self, groups: Sequence[KVGroupSize], block_size: int, *, prefix_cache: bool) -> None:
        self._pools = [self._pool(group.num_blocks) for group in groups]
        self._block_size = block_size

    def match(self, key: int, tokens: Sequence[int], *, domain: str = "") -> int:
        if key in self._tables:
            raise ValueError(f"sequence {key} already holds blocks")
        self._tables[key] = [[] for _ in self._pools]
        return 0

    def append(self, key: int, tokens: Sequence[int]) -> None:
        """No prefix is shared, so there is nothing to record."""

    def stats(self) -> KVStats:
        total = sum(pool.num_blocks for pool in self._pools)
        return KVStats(total, sum(pool.num_free for pool in self._pools), 0, 0, 0)
