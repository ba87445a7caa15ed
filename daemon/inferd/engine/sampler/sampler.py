"""Gumbel-max sampling of a batch of rows, each with parameters of its own.

A row's token depends on its logits, its parameters, its own history and (seed, position) only, never
on the rows beside it. The common cases cost little: all greedy is one argmax, temperature alone never
sorts, and only rows that ask for a filter pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferd.engine.sampler.edits import SlotEdits, apply_penalties
from inferd.engine.sampler.filters import apply_min_p, apply_top_k, apply_top_p
from inferd.engine.sampler.history import History
from inferd.engine.sampler.noise import gumbel, row_keys
from inferd.engine.sampler.params import SlotParams

if TYPE_CHECKING:
    from inferd.engine.batch import SlotInit
    from inferd.engine.sampler.rows import SampleRows


class Sampled(NamedTuple):
    ids: list[int]  # [R]
    bad: list[bool]  # [R] the model's logits hold NaN, +inf or nothing finite
    empty: list[bool]  # [R] the request's own rules leave no token


class Sampler:
    """Sampling state of every executor slot, and the choice of tokens."""

    def __init__(self, vocab_size: int, slots: int, device: str) -> None:
        self.params = SlotParams(slots)
        self._device = device
        self._history = History(vocab_size, device)
        self._edits: dict[int, SlotEdits] = {}
        self._tokens = torch.arange(vocab_size, dtype=torch.int32, device=device)

    def enter(self, init: SlotInit) -> None:
        """Take in a sequence; its slot must be free."""
        edits = SlotEdits.of(init, self._device)
        if edits is not None:
            self._edits[init.slot] = edits
        self.params.enter(init, edited=edits is not None)
        if self.params.penalised[init.slot]:
            self._history.enter(init.slot, init.tokens[: init.num_prompt], init.tokens[init.num_prompt :])

    def leave(self, slot: int) -> None:
        """Forget a sequence."""
        self._edits.pop(slot, None)
        self._history.leave(slot)

    def accept(self, slot: int, ids: Sequence[int]) -> None:
        """Record the tokens a sequence got."""
        if slot in self._history:
            self._history.append(slot, ids)
        if slot in self._edits and self._edits[slot].bad_words:
            self._edits[slot].tokens.extend(ids)

    def sample(
        self, logits: torch.Tensor, rows: SampleRows, known: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> Sampled:
        """Choose a token for each row of float32 logits [R, vocab], which are left as they are.

        `known` are the largest logit of each row and its lowest id, where the model found them already.
        """
        slots = rows.slots
        edited, penalised = self.params.edited[slots], self.params.penalised[slots]
        greedy = self.params.greedy[slots]
        work = logits
        if edited.any() or penalised.any():
            work = logits.clone()
            self._edit(work, rows, np.flatnonzero(edited))
            self._penalise(work, rows, np.flatnonzero(penalised))
        peaks, ids = known if known is not None and work is logits else work.max(-1)
        if not greedy.all():
            self._sample_random(work, ids, rows, np.flatnonzero(~greedy))
        sound = [math.isfinite(peak) for peak in peaks.tolist()]
        model = sound if work is logits else [math.isfinite(peak) for peak in logits.amax(-1).tolist()]
        return Sampled(
            ids.tolist(), [not own for own in model], [a and not b for a, b in zip(model, sound, strict=True)]
        )

    def _edit(self, work: torch.Tensor, rows: SampleRows, index: np.ndarray) -> None:
        for row in index.tolist():
            slot = int(rows.slots[row])
            num_output = int(rows.positions[row] - self.params.num_prompt[slot])
            self._edits[slot].apply(work[row], num_output, rows.before(row))

    def _penalise(self, work: torch.Tensor, rows: SampleRows, index: np.ndarray) -> None:
        if not len(index):
            return
        slots = rows.slots[index]
        counts, in_prompt = self._history.counts(slots.tolist(), [rows.before(row) for row in index.tolist()])
        picked = work[self._on_device(index)]
        apply_penalties(
            picked,
            counts,
            in_prompt,
            repetition=self._on_device(self.params.repetition[slots]),
            presence=self._on_device(self.params.presence[slots]),
            frequency=self._on_device(self.params.frequency[slots]),
        )
        work[self._on_device(index)] = picked

    def _sample_random(self, work: torch.Tensor, ids: torch.Tensor, rows: SampleRows, index: np.ndarray) -> None:
        """Write the sampled ids of the rows `index` into `ids`."""
        slots = rows.slots[index]
        where = self._on_device(index)
        scores = work if len(index) == len(work) else work.index_select(0, where)
        scores = scores / self._on_device(self.params.temperature[slots]).unsqueeze(1)
        self._filter(scores, slots)
        keys = row_keys(self.params.seed[slots], rows.positions[index])
        scores += gumbel(self._on_device(keys), self._tokens)
        ids[where] = scores.argmax(-1)

    def _filter(self, scores: torch.Tensor, slots: np.ndarray) -> None:
        """Remove tokens of the rows that ask for it, in place."""
        filtered = np.flatnonzero(self.params.filtered[slots])
        if not len(filtered):
            return
        slots = slots[filtered]
        where = self._on_device(filtered)
        picked = scores.index_select(0, where)
        top_k, top_p, min_p = self.params.top_k[slots], self.params.top_p[slots], self.params.min_p[slots]
        if (min_p > 0).any():
            apply_min_p(picked, self._on_device(min_p))
        if (top_k > 0).any():
            apply_top_k(picked, self._on_device(top_k))
        if (top_p < 1).any():
            apply_top_p(picked, self._on_device(top_p))
        scores.index_copy_(0, where, picked)

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)
