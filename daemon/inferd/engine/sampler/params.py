"""Sampling parameters of all executor slots, as arrays so that a step can pick its rows at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from inferd.engine.request import is_penalised
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
        self.num_prompt = np.zeros(slots, dtype=np.int64)
        self.logprobs = np.full(slots, -1, dtype=np.int64)
        """-1 = not wanted."""
        self.penalised = np.zeros(slots, dtype=bool)
        self.edited = np.zeros(slots, dtype=bool)

    def enter(self, init: SlotInit, *, edited: bool, keep: bool) -> None:
        """Take in a sequence. With `keep` its logits are written for the host to read."""
        slot, sampling = init.slot, init.sampling
        self.num_prompt[slot] = init.num_prompt
        self.logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.penalised[slot] = is_penalised(sampling)
        self.edited[slot] = edited
        record = self.choice[slot]
        for name, value in _choice(init.seed, sampling, keep=keep).items():
            record[name] = value


def _choice(seed: int, sampling: SamplingParams, *, keep: bool) -> dict[str, float]:
    """Return the fields of SLOT_CHOICE that parameters decide."""
    greedy = sampling.temperature < GREEDY_BELOW
    filtered = not greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
    log_min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
    temperature = 0.0 if greedy else sampling.temperature
    return {
        "seed": seed,
        "temperature": temperature,
        "log_min_p": log_min_p,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "filtered": filtered,
        "keep": keep,
        "repetition": sampling.repetition_penalty,
        "frequency": sampling.frequency_penalty,
        "presence": sampling.presence_penalty,
    }
