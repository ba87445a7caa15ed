"""What the largest steps of a model take of a device, found by running them once on a pool of a few blocks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferd.engine.batch import Batch, SlotInit
from inferd.load.errors import LoadError
from inferd.plugin.types import StepCounts
from inferd_client.protocol import SamplingParams

if TYPE_CHECKING:
    from inferd.engine.runner import Runner
    from inferd.engine.shape import EngineShape

SAMPLING = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, seed=0)
"""Takes more than a greedy choice."""


class Free(NamedTuple):
    """Bytes of a device."""

    total: int
    free: int


class Measured(NamedTuple):
    """Bytes of a device with the weights on it, no pool, and nothing computed yet."""

    free: int
    step: int
    """What the largest steps took with buffers, workspace, libraries and the largest graphs."""
    eager: int
    """What of it came on top of the graphs."""


def measure_steps(
    make: Callable[[int], Runner], shape: EngineShape, num_groups: int, memory: Callable[[], Free]
) -> Measured:
    """Run the largest prefill, decode and verify steps of a shape on a runner with the blocks that `make` is given.

    Raises LoadError with the numbers where there is no room for them.
    """
    before = least = memory().free
    try:
        runner, graphs = make(-(-_longest(shape) // shape.block_size)), before
        for batch in largest_steps(shape, num_groups):
            graphs = least
            runner.step(batch)
            least = min(least, memory().free)
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"a step of {shape.token_budget} tokens and {shape.max_sequences} sequences does not fit: "
            f"{before >> 20} MiB are free beside the weights: lower engine.token_budget, engine.chunk or "
            "engine.max_sequences, or use a smaller or further quantized model"
        ) from error
    del runner
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # or the pool would find the memory of these steps taken
    return Measured(before, before - least, graphs - least)


def largest_steps(shape: EngineShape, num_groups: int) -> Iterator[Batch]:
    """Yield the widest decode step, with drafts the widest verify step, and one that takes the whole budget.

    That one is last: it is no graph, and a capture returns what eager steps keep for the next.
    """
    sequences = shape.max_sequences
    first = min(sequences, shape.token_budget)
    yield _step(shape, num_groups, [1] * first, "decode")
    if shape.max_draft:
        count = min(sequences, shape.token_budget // (1 + shape.max_draft))
        yield _step(shape, num_groups, [1 + shape.max_draft] * count, "verify")
    yield _step(shape, num_groups, _fill(shape.token_budget, first, _longest(shape)), "prefill")


def _longest(shape: EngineShape) -> int:
    return min(shape.chunk, shape.max_context)


def _fill(tokens: int, rows: int, most: int) -> list[int]:
    """Return the lengths of rows that take `tokens` together: the first as long as may be, the others one token."""
    lens = [1] * rows
    for row in range(rows):
        lens[row] += min(most - 1, tokens - sum(lens))
    return lens


def _step(shape: EngineShape, num_groups: int, lens: list[int], kind: str) -> Batch:
    """Return a step of rows of these lengths, each at the end of the longest context.

    All sequences use the same few blocks: what is computed is not read.
    """
    count, lengths = len(lens), np.array(lens, np.int32)
    ends = np.cumsum(lengths)
    contexts = np.full(count, shape.max_context, np.int32)
    within = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - lengths, lengths).astype(np.int32)
    drafts = lengths - 1 if kind == "verify" else np.zeros(count, np.int32)
    slots = np.arange(count, dtype=np.int32)
    sampled = np.arange(ends[-1]) if kind == "verify" else ends - 1
    return Batch(
        counts=StepCounts(**{name: count if name == kind else 0 for name in ("decode", "verify", "prefill")}),
        token_ids=np.zeros(ends[-1], np.int32),
        positions=np.repeat(contexts - lengths, lengths).astype(np.int32) + within,
        cu_seqlens=np.concatenate(([0], ends)).astype(np.int32),
        context_lens=contexts,
        block_tables=np.zeros((num_groups, count, shape.max_blocks), np.int32),
        slots=np.tile(within.astype(np.int64), (num_groups, 1)),
        sample_rows=sampled.astype(np.int32),
        seq_slots=slots,
        draft_lens=drafts.astype(np.int32),
        sampling_seqs=slots,
        enter=[_init(slot) for slot in slots.tolist()],
        leave=slots.tolist(),
    )


def _init(slot: int) -> SlotInit:
    return SlotInit(slot=slot, seed=0, sampling=SAMPLING, num_prompt=1, tokens=[0], eos_ids=(), bad_word_ids=())
