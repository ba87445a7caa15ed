"""Token counts of the slots whose requests use penalties, one row of the vocabulary each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from inferd_kernels.cpu.operators import HISTORY_PROMPT

if TYPE_CHECKING:
    import numpy as np


class History:
    """Rows that are kept for the next: most requests have no penalties and cost nothing here.

    A row is int32 [vocab]: how often the output has a token, + HISTORY_PROMPT where the prompt has it. It stays at its
    address as long as its slot, so that the native kernel can read it.
    """

    def __init__(self, vocab_size: int, device: str) -> None:
        self._vocab = vocab_size
        self._device = device
        self._rows: dict[int, torch.Tensor] = {}
        self._host: dict[int, np.ndarray] = {}
        """The same rows as numpy sees them, on a CPU."""
        self._free: list[torch.Tensor] = []

    def __contains__(self, slot: int) -> bool:
        return slot in self._rows

    def enter(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Count the tokens of a sequence; return the address of its row."""
        row = self._free.pop() if self._free else torch.empty(self._vocab, dtype=torch.int32, device=self._device)
        row.copy_((self._bincount(prompt) > 0) * HISTORY_PROMPT + self._bincount(output))
        self._rows[slot] = row
        if row.device.type == "cpu":
            self._host[slot] = row.numpy()
        return row.data_ptr()

    def leave(self, slot: int) -> None:
        self._host.pop(slot, None)
        row = self._rows.pop(slot, None)
        if row is not None:
            self._free.append(row)

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        counts = self._host.get(slot)
        if counts is None:
            self._rows[slot] += self._bincount(tokens)
            return
        for token in tokens:
            counts[token] += 1

    def counts(self, slots: Sequence[int], drafts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output counts and prompt membership [R, vocab] of rows.

        Row i belongs to slots[i]; drafts[i] are the draft tokens that stand before it, which count.
        """
        words = torch.stack([self._rows[slot] for slot in slots])
        rows = [row for row, before in enumerate(drafts) for _ in before]
        if rows:
            tokens = torch.tensor([token for before in drafts for token in before], device=self._device)
            ones = torch.ones(len(rows), dtype=words.dtype, device=self._device)
            words.index_put_((torch.tensor(rows, device=self._device), tokens), ones, accumulate=True)
        return words & (HISTORY_PROMPT - 1), words >= HISTORY_PROMPT

    def _bincount(self, tokens: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor(tokens, dtype=torch.int64, device=self._device)
        return torch.bincount(ids, minlength=self._vocab).to(torch.int32)
