"""The blocks of one KV group: who holds them, and which free ones still hold a known prefix."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class Cached(NamedTuple):
    """What a block is known to hold."""

    key: bytes
    tokens: tuple[int, ...]


class BlockPool:
    """Reference-counted blocks. Free ones are plain, or cached and then reused least recently used first."""

    __slots__ = ("_blocks", "_cached", "_content", "_plain", "_refs", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._content: list[Cached | None] = [None] * num_blocks
        self._blocks: dict[bytes, int] = {}
        self._plain = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._plain) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def take(self) -> int:
        """Hand out a free block for writing; what it held is forgotten. The caller checked `num_free`."""
        if self._plain:
            block = self._plain.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._unmap(block)
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reader to a block that holds a known prefix."""
        if not self._refs[block]:
            del self._cached[block]
        self._refs[block] += 1

    def release(self, block: int) -> None:
        """Drop one holder. Raises ValueError when nobody holds the block."""
        refs = self._refs[block] - 1
        if refs < 0:
            raise ValueError(f"block {block} is freed twice")
        self._refs[block] = refs
        if refs:
            return
        if self._content[block] is None:
            self._plain.append(block)
        else:
            self._cached[block] = None

    def find(self, key: bytes, tokens: tuple[int, ...]) -> int | None:
        """Return the block that holds exactly these tokens after this prefix."""
        block = self._blocks.get(key)
        if block is None:
            return None
        content = self._content[block]
        return block if content is not None and content.tokens == tokens else None

    def remember(self, block: int, key: bytes, tokens: tuple[int, ...]) -> None:
        """Let later sequences find a held block, unless another block already serves this key."""
        if key not in self._blocks and self._content[block] is None:
            self._blocks[key] = block
            self._content[block] = Cached(key, tokens)

    def forget(self, block: int) -> None:
        """Make the content of a block unfindable (bad numerics, or about to be written again)."""
        if self._content[block] is None:
            return
        self._unmap(block)
        if block in self._cached:
            del self._cached[block]
            self._plain.append(block)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def content(self, block: int) -> Cached | None:
        return self._content[block]

    def _unmap(self, block: int) -> None:
        content = self._content[block]
        assert content is not None, f"block {block} is listed as cached but holds nothing known"
        del self._blocks[content.key]
        self._content[block] = None

    def problems(self) -> list[str]:
        """Name every broken invariant; empty when the books are right (for tests)."""
        free = [*self._plain, *self._cached]
        found = []
        if len(set(free)) != len(free):
            found.append("a block is on the free lists twice")
        found += [f"block {b} is free with {self._refs[b]} holders" for b in free if self._refs[b]]
        held = sum(1 for refs in self._refs if refs)
        if held + len(free) != self.num_blocks:
            found.append(f"{held} held + {len(free)} free of {self.num_blocks} blocks")
        for key, block in self._blocks.items():
            content = self._content[block]
            if content is None or content.key != key:
                found.append(f"the map sends a key to block {block}, which holds something else")
        known = sum(1 for content in self._content if content is not None)
        if known != len(self._blocks):
            found.append(f"{known} blocks hold a prefix, the map knows {len(self._blocks)}")
        found += [f"block {b} is plain but holds a prefix" for b in self._plain if self._content[b] is not None]
        found += [f"block {b} is cached but holds no prefix" for b in self._cached if self._content[b] is None]
        return found
