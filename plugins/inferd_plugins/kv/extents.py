"""Runs of consecutive free blocks, given out first-fit."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """Free runs of one pool as (start, length), sorted, never adjacent. Fragmentation is real here."""

    __slots__ = ("num_blocks", "runs")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.runs: list[tuple[int, int]] = [(0, num_blocks)] if num_blocks else []

    @property
    def num_free(self) -> int:
        return sum(length for _, length in self.runs)

    def take(self, length: int) -> int | None:
        """Return the start of the first run that has `length` blocks, or None."""
        for index, (start, have) in enumerate(self.runs):
            if have >= length:
                self._shrink(index, length)
                return start
        return None

    def take_at(self, start: int, length: int) -> bool:
        """Take the blocks that begin exactly at `start`, if they are free."""
        index = bisect_left(self.runs, (start, 0))
        if index == len(self.runs) or self.runs[index][0] != start or self.runs[index][1] < length:
            return False
        self._shrink(index, length)
        return True

    def give(self, start: int, length: int) -> None:
        """Return a run and join it with its neighbours. Raises ValueError when it is free already."""
        index = bisect_left(self.runs, (start, 0))
        after = self.runs[index] if index < len(self.runs) else None
        before = self.runs[index - 1] if index else None
        if (after and start + length > after[0]) or (before and sum(before) > start):
            raise ValueError(f"blocks {start} to {start + length - 1} are freed twice")
        low, high = index, index
        if before and sum(before) == start:
            start, length, low = before[0], before[1] + length, index - 1
        if after and start + length == after[0]:
            length, high = length + after[1], index + 1
        self.runs[low:high] = [(start, length)]

    def _shrink(self, index: int, length: int) -> None:
        start, have = self.runs[index]
        self.runs[index : index + 1] = [(start + length, have - length)] if have > length else []
