"""Sampling parameters of all executor slots, as arrays so that a step can pick its rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from inferd.engine.batch import SlotInit

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would only overflow."""


class SlotParams:
    """One array per parameter, indexed by slot."""

    def __init__(self, slots: int) -> None:
        self.temperature = np.zeros(slots, dtype=np.float32)
        self.top_k = np.zeros(slots, dtype=np.int64)
        self.top_p = np.ones(slots, dtype=np.float32)
        self.min_p = np.zeros(slots, dtype=np.float32)
        self.repetition = np.ones(slots, dtype=np.float32)
        self.presence = np.zeros(slots, dtype=np.float32)
        self.frequency = np.zeros(slots, dtype=np.float32)
        self.seed = np.zeros(slots, dtype=np.int64)
        self.num_prompt = np.zeros(slots, dtype=np.int64)
        self.logprobs = np.full(slots, -1, dtype=np.int64)
        """-1 = not wanted."""
        self.greedy = np.ones(slots, dtype=bool)
        self.filtered = np.zeros(slots, dtype=bool)
        self.penalised = np.zeros(slots, dtype=bool)
        self.edited = np.zeros(slots, dtype=bool)

    def enter(self, init: SlotInit, *, edited: bool) -> None:
        slot, sampling = init.slot, init.sampling
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.repetition[slot] = sampling.repetition_penalty
        self.presence[slot] = sampling.presence_penalty
        self.frequency[slot] = sampling.frequency_penalty
        self.seed[slot] = init.seed
        self.num_prompt[slot] = init.num_prompt
        self.logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.greedy[slot] = sampling.temperature < GREEDY_BELOW
        self.filtered[slot] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self.penalised[slot] = (
            sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        )
        self.edited[slot] = edited
