"""Hash chain over full blocks: the key of a block names its tokens and everything before them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def root(domain: str) -> bytes:
    """Return the key before the first block; domains (model, adapter, salt) never share a key."""
    return blake2b(domain.encode(), digest_size=DIGEST_BYTES, person=b"inferd-kv").digest()


def extend(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of the block of `tokens` that follows the block with key `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def full_blocks(domain: str, tokens: Sequence[int], block_size: int, count: int) -> Iterator[tuple[bytes, tuple]]:
    """Yield (key, tokens) of the first `count` blocks of `tokens`."""
    key = root(domain)
    for start in range(0, count * block_size, block_size):
        block = tuple(tokens[start : start + block_size])
        key = extend(key, block)
        yield key, block
