"""Token counts of the slots whose requests use penalties, one row of the vocabulary each."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class History:
    """Pools that grow with use: most requests have no penalties and cost nothing here."""

    def __init__(self, vocab_size: int, device: str) -> None:
        self._vocab = vocab_size
        self._device = device
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._rows: dict[int, int] = {}
        self._free: list[int] = []

    def __contains__(self, slot: int) -> bool:
        return slot in self._rows

    def enter(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        if not self._free:
            self._grow()
        row = self._rows[slot] = self._free.pop()
        self._counts[row] = self._bincount(output)
        self._in_prompt[row] = self._bincount(prompt) > 0

    def leave(self, slot: int) -> None:
        row = self._rows.pop(slot, None)
        if row is not None:
            self._free.append(row)

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        self._counts[self._rows[slot]] += self._bincount(tokens)

    def counts(self, slots: Sequence[int], drafts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output counts and prompt membership [R, vocab] of rows.

        Row i belongs to slots[i]; drafts[i] are the draft tokens that stand before it, which count.
        """
        index = torch.tensor([self._rows[slot] for slot in slots], device=self._device)
        counts = self._counts.index_select(0, index)
        rows = [row for row, before in enumerate(drafts) for _ in before]
        if rows:
            tokens = torch.tensor([token for before in drafts for token in before], device=self._device)
            ones = torch.ones(len(rows), dtype=counts.dtype, device=self._device)
            counts.index_put_((torch.tensor(rows, device=self._device), tokens), ones, accumulate=True)
        return counts, self._in_prompt.index_select(0, index)

    def _bincount(self, tokens: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor(tokens, dtype=torch.int64, device=self._device)
        return torch.bincount(ids, minlength=self._vocab).to(torch.int32)

    def _grow(self) -> None:
        old, new = len(self._counts), max(4, len(self._counts))
        self._counts = torch.cat((self._counts, self._counts.new_zeros(new, self._vocab)))
        self._in_prompt = torch.cat((self._in_prompt, self._in_prompt.new_zeros(new, self._vocab)))
        self._free.extend(range(old, old + new))
