"""Gumbel-max sampling of a batch of rows, each with parameters of its own.

A row's token depends on its logits, its parameters, its own history and (seed, position) only, never
on the rows beside it. Where the native kernel of the output matrix chooses (`inferd_kernels.cpu.operators.choose`),
it finds the same tokens bit for bit, edits, penalties and grammars included. The sampler kernel of a GPU knows none of
these, so rows that change their logits come here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferd.engine.request import is_penalised
from inferd.engine.sampler.edits import SlotEdits, apply_penalties
from inferd.engine.sampler.history import History
from inferd.engine.sampler.masks import apply_masks
from inferd.engine.sampler.native import NativeEdits
from inferd.engine.sampler.params import SlotParams
from inferd_kernels.cpu.operators import BAD_LOGITS, NO_TOKEN
from inferd_kernels.reference.filters import apply_min_p, apply_top_k, apply_top_p
from inferd_kernels.reference.noise import gumbel, row_keys

if TYPE_CHECKING:
    from inferd.engine.batch import SlotInit
    from inferd.engine.sampler.rows import SampleRows


class Sampled(NamedTuple):
    ids: list[int]  # [R]
    bad: list[bool]  # [R] the model's logits hold NaN, +inf or nothing finite
    empty: list[bool]  # [R] the request's own rules leave no token


class Sampler:
    """Sampling state of every executor slot, and the choice of tokens."""

    def __init__(self, vocab_size: int, slots: int, device: str, *, native_rows: int = 0) -> None:
        """`native_rows`: the most rows of a step whose tokens the native kernel chooses; 0 = it chooses none."""
        self.params = SlotParams(slots)
        self.native = NativeEdits(vocab_size, self.params.choice, native_rows) if native_rows else None
        self._device = device
        self._history = History(vocab_size, device)
        self._edits: dict[int, SlotEdits] = {}
        self._tokens = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self.host_slots: set[int] = set()
        """Slots that take more of the host than their tokens: log-probabilities, history, edits made here."""

    def enter(self, init: SlotInit) -> None:
        """Take in a sequence; its slot must be free."""
        edits = SlotEdits.of(init, self._device)
        if edits is not None:
            self._edits[init.slot] = edits
        penalised = is_penalised(init.sampling)
        asked, own = init.sampling.logprobs is not None, edits is not None or penalised
        self.params.enter(init, edited=edits is not None, keep=asked or (own and self.native is None))
        if asked or own:
            self.host_slots.add(init.slot)
        history = 0
        if penalised:
            history = self._history.enter(init.slot, init.tokens[: init.num_prompt], init.tokens[init.num_prompt :])
        if self.native is not None:
            self.native.enter(init.slot, edits, init.num_prompt, history)

    def leave(self, slot: int) -> None:
        """Forget a sequence."""
        self._edits.pop(slot, None)
        self.host_slots.discard(slot)
        self._history.leave(slot)
        if self.native is not None:
            self.native.leave(slot)

    def watch(self, slots: Sequence[int]) -> None:
        """Have the logits of these slots kept from now on: their sequences follow grammars."""
        if self.native is not None:
            return  # it follows them itself
        self.params.choice["keep"][slots] = 1
        self.host_slots.update(slots)

    def accept(self, slot: int, ids: Sequence[int]) -> None:
        """Record the tokens a sequence got."""
        if slot in self._history:
            self._history.append(slot, ids)
        if slot in self._edits and self._edits[slot].bad_words:
            self._edits[slot].tokens.extend(ids)

    def sample(self, logits: torch.Tensor, rows: SampleRows, chosen: Sequence[int] | None = None) -> Sampled:
        """Choose a token for each row of float32 logits [R, vocab], which are left as they are.

        `chosen` are the tokens that a kernel found (BAD_LOGITS, NO_TOKEN). Those of the native kernel stand; those of
        a GPU but for rows with edits, penalties or a grammar, and only the logits of such rows are read.
        """
        slots = rows.slots
        if chosen is not None and self.native is not None:
            return Sampled(
                list(chosen), [token == BAD_LOGITS for token in chosen], [token == NO_TOKEN for token in chosen]
            )
        own = self.params.edited[slots] | self.params.penalised[slots]
        if rows.masked is not None:
            own[rows.masked] = True
        if chosen is None:
            return self._choose(logits, rows, np.arange(len(slots)), edits=bool(own.any()))
        ids, bad, empty = list(chosen), [token < 0 for token in chosen], [False] * len(chosen)
        index = np.flatnonzero(own)
        if len(index):
            found = self._choose(logits[self._on_device(index)], rows, index, edits=True)
            for row, token, is_bad, is_empty in zip(index.tolist(), *found, strict=True):
                ids[row], bad[row], empty[row] = token, is_bad, is_empty
        return Sampled(ids, bad, empty)

    def _choose(self, logits: torch.Tensor, rows: SampleRows, index: np.ndarray, *, edits: bool) -> Sampled:
        """Choose for the rows `index`, whose logits these are."""
        work = logits
        if edits:
            work = logits.clone()
            if rows.masked is not None and rows.masks is not None:
                apply_masks(work, np.searchsorted(index, rows.masked).astype(np.int32), rows.masks)
            self._edit(work, rows, index)
            self._penalise(work, rows, index)
        peaks, ids = work.max(-1)
        warm = np.flatnonzero(self.params.choice["temperature"][rows.slots[index]] > 0)
        if len(warm):
            self._sample_random(work, ids, rows, index, warm)
        sound = [math.isfinite(peak) for peak in peaks.tolist()]
        model = [math.isfinite(peak) for peak in logits.amax(-1).tolist()] if edits else sound
        return Sampled(
            ids.tolist(), [not own for own in model], [a and not b for a, b in zip(model, sound, strict=True)]
        )

    def _edit(self, work: torch.Tensor, rows: SampleRows, index: np.ndarray) -> None:
        for at, row in enumerate(index.tolist()):
            slot = int(rows.slots[row])
            if slot in self._edits:
                num_output = int(rows.positions[row] - self.params.num_prompt[slot])
                self._edits[slot].apply(work[at], num_output, rows.before(row))

    def _penalise(self, work: torch.Tensor, rows: SampleRows, index: np.ndarray) -> None:
        where = np.flatnonzero(self.params.penalised[rows.slots[index]])
        if not len(where):
            return
        slots = rows.slots[index[where]]
        choice = self.params.choice[slots]
        counts, in_prompt = self._history.counts(slots.tolist(), [rows.before(row) for row in index[where].tolist()])
        picked = work[self._on_device(where)]
        apply_penalties(
            picked,
            counts,
            in_prompt,
            repetition=self._on_device(choice["repetition"]),
            presence=self._on_device(choice["presence"]),
            frequency=self._on_device(choice["frequency"]),
        )
        work[self._on_device(where)] = picked

    def _sample_random(
        self, work: torch.Tensor, ids: torch.Tensor, rows: SampleRows, index: np.ndarray, warm: np.ndarray
    ) -> None:
        """Write the sampled ids of the rows index[warm] into `ids`."""
        choice = self.params.choice[rows.slots[index[warm]]]
        where = self._on_device(warm)
        scores = work.index_select(0, where) / self._on_device(choice["temperature"]).unsqueeze(1)
        self._filter(scores, choice)
        keys = row_keys(choice["seed"], rows.positions[index[warm]])
        scores += gumbel(self._on_device(keys), self._tokens)
        ids[where] = scores.argmax(-1)

    def _filter(self, scores: torch.Tensor, choice: np.ndarray) -> None:
        """Remove tokens of the rows that ask for it, in place."""
        filtered = np.flatnonzero(choice["filtered"])
        if not len(filtered):
            return
        choice = choice[filtered]
        where = self._on_device(filtered)
        picked = scores.index_select(0, where)
        if (choice["log_min_p"] > -math.inf).any():
            apply_min_p(picked, self._on_device(choice["log_min_p"]))
        if (choice["top_k"] > 0).any():
            apply_top_k(picked, self._on_device(choice["top_k"]))
        if (choice["top_p"] < 1).any():
            apply_top_p(picked, self._on_device(choice["top_p"]))
        scores.index_copy_(0, where, picked)

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
