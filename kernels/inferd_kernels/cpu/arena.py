"""Memory of a recorded program: buffers are handed out in the order of the calls and reused the same way."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.pages import ALIGNMENT, LARGE_PAGE


class Arena:
    """Buffers that come back by themselves when the last tensor on them is gone."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        """Never replaced: buffers come back to this list."""
        self._blocks: list[np.ndarray] = []
        """All there are: recorded calls point into them."""
        self.num_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = int(np.prod(shape))
        size = max(ALIGNMENT, -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT)
        block = self._take(size)
        view = block[:size].view()  # its own object: torch holds it until the last tensor on it is gone
        weakref.finalize(view, self._free.append, block)
        return torch.from_numpy(view).view(dtype)[:count].view(shape)

    def _take(self, size: int) -> np.ndarray:
        """Return the smallest free block that fits, or a new one."""
        fitting = [index for index, block in enumerate(self._free) if len(block) >= size]
        if not fitting:
            self.num_bytes += size
            alignment = ALIGNMENT if size < LARGE_PAGE else LARGE_PAGE
            raw = np.empty(size + alignment, np.uint8)
            start = -raw.ctypes.data % alignment
            if size >= LARGE_PAGE:  # columns of such a buffer are written a page apart
                load().advise(raw.ctypes.data + start, size)
            self._blocks.append(raw[start : start + size])
            return self._blocks[-1]
        return self._free.pop(min(fitting, key=lambda index: len(self._free[index])))
