"""Feed single rows to the vectorised sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from inferd.engine.batch import SlotInit
from inferd.engine.sampler import Sampler
from inferd.engine.sampler.rows import SampleRows
from inferd.engine.sampler.sampler import Sampled
from tests.engine.sampler.oracle import Row


def enter(sampler: Sampler, slot: int, row: Row) -> None:
    sampler.enter(
        SlotInit(
            slot=slot,
            seed=row.seed,
            sampling=row.sampling,
            num_prompt=len(row.prompt),
            tokens=[*row.prompt, *row.output],
            eos_ids=tuple(row.eos_ids),
            bad_word_ids=tuple(tuple(word) for word in row.bad_words),
        )
    )


def sample_rows(rows: Sequence[Row], *, vocab: int | None = None) -> Sampled:
    """Sample rows of one step together, slot i for row i."""
    sampler = Sampler(vocab or len(rows[0].logits), len(rows), "cpu")
    for slot, row in enumerate(rows):
        enter(sampler, slot, row)
    logits = torch.from_numpy(np.stack([row.logits for row in rows])).float()
    kept = logits.clone()
    sampled = sampler.sample(logits, plain_rows(range(len(rows)), [row.position for row in rows]))
    assert torch.equal(logits.nan_to_num(), kept.nan_to_num())  # the raw logits are still needed for logprobs
    return sampled


def plain_rows(slots: Sequence[int], positions: Sequence[int]) -> SampleRows:
    return SampleRows(
        slots=np.array(slots, dtype=np.int32),
        positions=np.array(positions, dtype=np.int64),
        offsets=np.arange(len(slots) + 1),
        drafts=[[] for _ in slots],
    )
