"""Which steps are captured: sequence counts of buckets, and the bucket of a step. Plain integers, no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferd.plugin.types import StepCounts

STEP = 16
"""Distance of larger buckets: padding stays under 16 rows, and each graph costs memory and a capture."""


class Bucket(NamedTuple):
    """A captured step: this many sequences, of at most this many rows each."""

    sequences: int
    rows: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.rows


def sequence_counts(max_sequences: int) -> tuple[int, ...]:
    """Return the sequence counts that steps are captured for: powers of two, then every 16th."""
    small = [count for count in (1, 2, 4, 8) if count < max_sequences]
    return (*small, *range(STEP, max_sequences, STEP), max_sequences)


def choose(
    counts: StepCounts, query_lens: Sequence[int], sizes: Sequence[int], *, max_draft: int, token_limit: int
) -> Bucket | None:
    """Return the smallest bucket that holds a step; None for one with prefill rows, or none that fits.

    `sizes` are the sequence counts, ascending; `token_limit` is the rows that the buffers have.
    """
    if counts.prefill or not query_lens:
        return None
    longest = max(query_lens)
    if longest > 1 + max_draft or len(query_lens) > sizes[-1]:
        return None
    bucket = Bucket(sizes[bisect_left(sizes, len(query_lens))], 1 if longest == 1 else 1 + max_draft)
    return bucket if bucket.tokens <= token_limit else None
