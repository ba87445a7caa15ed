"""Edits as the native kernel of the output matrix reads them: addresses in the slots' records, a mask for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferd.engine.sampler.rows import sample_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferd.engine.batch import Batch
    from inferd.engine.sampler.edits import SlotEdits

ALL = np.int32(-1)
"""A word of a mask that allows all of its 32 tokens."""


class _Masks(NamedTuple):
    """What one sequence may choose, but for its grammar."""

    edits: SlotEdits
    num_prompt: int
    early: NDArray[np.int32] | None
    """Bits for outputs before min_tokens."""
    late: NDArray[np.int32] | None


class NativeEdits:
    """Memory that recorded steps point into; `load` puts a step's masks there."""

    def __init__(self, vocab_size: int, choice: np.ndarray, num_rows: int) -> None:
        """`choice` are the SLOT_CHOICE records; `num_rows` is the most rows that a step samples."""
        self.row_masks = np.zeros(num_rows, np.int64)
        """Address of the mask of each row; 0 = everything may be chosen."""
        self._choice = choice
        self._words = -(-vocab_size // 32)
        self._masks: dict[int, _Masks] = {}
        self._biases: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._used = 0
        """Rows of `row_masks` that are not 0."""
        self._pointed: list[np.ndarray] = []
        """What the step's addresses point to."""

    def enter(self, slot: int, edits: SlotEdits | None, num_prompt: int, history: int) -> None:
        """Take in a sequence; `history` is the address of its counts, 0 where it has no penalties."""
        record = self._choice[slot]
        record["history"], record["num_bias"] = history, 0
        if edits is None:
            return
        if edits.bias_ids is not None and edits.bias is not None:
            ids, values = edits.bias_ids.numpy().astype(np.int32), edits.bias.numpy()
            self._biases[slot] = ids, values
            record["num_bias"], record["bias_ids"], record["bias"] = len(ids), ids.ctypes.data, values.ctypes.data
        if edits.allowed is not None or edits.blocked is not None or edits.bad_words:
            self._masks[slot] = self._masks_of(edits, num_prompt)

    def leave(self, slot: int) -> None:
        self._biases.pop(slot, None)
        self._masks.pop(slot, None)

    def load(self, batch: Batch) -> None:
        """Say what the rows of a step may choose."""
        self.row_masks[: self._used] = 0
        self._used = 0
        self._pointed = []
        if len(batch.masked_rows):
            addresses = batch.masks.ctypes.data + batch.masks.strides[0] * np.arange(len(batch.masked_rows))
            self.row_masks[batch.masked_rows] = addresses
            self._pointed.append(batch.masks)
            self._used = len(batch.sample_rows)
        if self._masks and not self._masks.keys().isdisjoint(batch.row_slots.tolist()):
            self._load_own(batch)

    def _load_own(self, batch: Batch) -> None:
        rows = sample_rows(batch)
        self._used = len(rows.slots)
        grammar = dict(zip(batch.masked_rows.tolist(), batch.masks, strict=True))
        for row, slot in enumerate(rows.slots.tolist()):
            if slot not in self._masks:
                continue
            edits, num_prompt, early, late = self._masks[slot]
            own = early if int(rows.positions[row]) - num_prompt < edits.min_tokens else late
            parts = [mask for mask in (own, grammar.get(row)) if mask is not None]
            banned = edits.banned(rows.before(row))
            if len(parts) > 1 or banned:
                parts = [self._made(parts, banned)]
            self._pointed += parts
            self.row_masks[row] = parts[0].ctypes.data if parts else 0

    def _made(self, parts: Sequence[NDArray[np.int32]], banned: Sequence[int]) -> NDArray[np.int32]:
        made = np.full(self._words, ALL)
        for mask in parts:
            made &= mask
        for token in banned:
            made.view(np.uint32)[token // 32] &= ~np.uint32(1 << token % 32)
        return made

    def _masks_of(self, edits: SlotEdits, num_prompt: int) -> _Masks:
        late = None if edits.allowed is None else self._bits(edits.allowed.numpy())
        early = late
        if edits.blocked is not None:
            early = self._made([] if late is None else [late], edits.blocked.tolist())
        return _Masks(edits, num_prompt, early, late)

    def _bits(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        flags = np.zeros(self._words * 32, np.uint8)
        flags[ids] = 1
        return np.packbits(flags, bitorder="little").view(np.int32)
