"""Sampling parameters of all executor slots, as arrays so that a step can pick its rows at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from inferd_kernels.cpu.operators import SLOT_CHOICE

if TYPE_CHECKING:
    from inferd.engine.batch import SlotInit
    from inferd_client.protocol import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would only overflow."""


class SlotParams:
    """One array per parameter, indexed by slot."""

    def __init__(self, slots: int) -> None:
        self.choice = np.zeros(slots, SLOT_CHOICE)
        """What choosing a token takes, as the native kernel reads it."""
        self.repetition = np.ones(slots, dtype=np.float32)
        self.presence = np.zeros(slots, dtype=np.float32)
        self.frequency = np.zeros(slots, dtype=np.float32)
        self.num_prompt = np.zeros(slots, dtype=np.int64)
        self.logprobs = np.full(slots, -1, dtype=np.int64)
        """-1 = not wanted."""
        self.penalised = np.zeros(slots, dtype=bool)
        self.edited = np.zeros(slots, dtype=bool)

    def enter(self, init: SlotInit, *, edited: bool) -> None:
        slot, sampling = init.slot, init.sampling
        self.repetition[slot] = sampling.repetition_penalty
        self.presence[slot] = sampling.presence_penalty
        self.frequency[slot] = sampling.frequency_penalty
        self.num_prompt[slot] = init.num_prompt
        self.logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.penalised[slot] = penalised = (
            sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        )
        self.edited[slot] = edited
        self.choice[slot] = _choice(init.seed, sampling, keep=penalised or edited or sampling.logprobs is not None)

    def read_by_host(self, slot: int) -> bool:
        """Say whether choosing or reporting takes the logits themselves."""
        return bool(self.choice["keep"][slot])


def _choice(seed: int, sampling: SamplingParams, *, keep: bool) -> tuple[int, float, float, float, int, bool, bool]:
    """Return a record of SLOT_CHOICE."""
    greedy = sampling.temperature < GREEDY_BELOW
    filtered = not greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
    log_min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
    temperature = 0.0 if greedy else sampling.temperature
    return seed, temperature, log_min_p, sampling.top_p, sampling.top_k, filtered, keep
