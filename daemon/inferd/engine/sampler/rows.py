"""The rows of one step that are sampled, as the sampler sees them. Plain numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferd.engine.batch import Batch


class SampleRows(NamedTuple):
    """R rows of S sequences; a sequence has one row, and one more for each draft it verifies."""

    slots: NDArray[np.int32]  # [R] executor slot
    positions: NDArray[np.int64]  # [R] absolute position of the token to choose
    offsets: NDArray[np.int64]  # [S + 1] rows of each sequence
    drafts: list[list[int]]  # [S] draft tokens; row j of a sequence stands after the first j of them
    masked: NDArray[np.int32] | None = None  # [K] rows that follow a grammar; None = there are none
    masks: NDArray[np.int32] | None = None  # [K, vocab / 32] the tokens their grammars allow, as bits

    @property
    def num_seqs(self) -> int:
        return len(self.drafts)

    def before(self, row: int) -> list[int]:
        """Return the draft tokens that stand before a row."""
        sequence = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return self.drafts[sequence][: row - int(self.offsets[sequence])]


def sample_rows(batch: Batch) -> SampleRows:
    """Read the sampled rows off a batch."""
    seqs = batch.sampling_seqs
    lens = batch.draft_lens[seqs]
    offsets = np.zeros(len(seqs) + 1, dtype=np.int64)
    np.cumsum(lens + 1, out=offsets[1:])
    drafts: list[list[int]] = [[] for _ in seqs]
    for i in np.flatnonzero(lens):
        end = int(batch.cu_seqlens[seqs[i] + 1])
        drafts[i] = batch.token_ids[end - int(lens[i]) : end].tolist()
    return SampleRows(
        slots=np.repeat(batch.seq_slots[seqs], lens + 1),
        positions=batch.positions[batch.sample_rows].astype(np.int64) + 1,
        offsets=offsets,
        drafts=drafts,
        masked=batch.masked_rows if len(batch.masked_rows) else None,
        masks=batch.masks,
    )


def accepted(drafts: list[int], sampled: list[int]) -> int:
    """Count the leading drafts that equal what was sampled in their place.

    `sampled` has one more entry than `drafts`. Keeping exactly these gives the tokens of plain decoding.
    """
    count = 0
    while count < len(drafts) and drafts[count] == sampled[count]:
        count += 1
    return count
