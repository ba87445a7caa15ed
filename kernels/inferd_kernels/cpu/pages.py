"""Memory on large pages, for what steps read from end to end: weights, keys and values."""

from __future__ import annotations

import mmap
from contextlib import suppress
from threading import Lock

import torch

LARGE_PAGE = 2 << 20
SLAB = 64 << 20
ALIGNMENT = 64


def large_pages(num_bytes: int) -> mmap.mmap:
    """Return at least so many zeroed bytes, on large pages where the system has them; they take memory once written."""
    whole = -(-max(1, num_bytes) // LARGE_PAGE) * LARGE_PAGE
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the system has none
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Slabs:
    """Hands out memory side by side: one matrix alone is often smaller than a large page.

    A slab lives as long as anything in it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._memory = memoryview(b"")
        self._used = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return so many zeroed bytes."""
        with self._lock:
            if self._used + num_bytes > len(self._memory):
                self._memory, self._used = memoryview(large_pages(max(SLAB, num_bytes))), 0
            first = self._used
            self._used += -(-num_bytes // ALIGNMENT) * ALIGNMENT
            memory = self._memory
        if not num_bytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=first)
