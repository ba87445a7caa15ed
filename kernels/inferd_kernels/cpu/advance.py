"""Several steps of plain decoding in one call: from the tokens of one to the inputs of the next, without the host."""

from __future__ import annotations

from typing import Any

import torch

from inferd_kernels.cpu.program import launch, recording
from inferd_kernels.cpu.structs import AdvanceArgs


def advance(chosen: torch.Tensor, inputs: Any, *, block_size: int, most_steps: int) -> torch.Tensor:
    """Record what follows the choice of tokens [R] int64; return where those of each step are kept, [steps, R] int64.

    `inputs` are the whole `StepInputs` of the program. It does nothing in calls of one step; in others every sequence
    has one row, which samples, and its block table reaches as far as the steps do.
    """
    program = recording()
    assert program is not None, "steps follow each other in recorded programs only"
    kept = torch.zeros(most_steps, len(chosen), dtype=torch.int64)
    groups, sequences, blocks = inputs.block_tables.shape
    args = AdvanceArgs(
        rows=program.address("sampled"),
        steps=program.address("steps"),
        step=program.address("step"),
        chosen=chosen.data_ptr(),
        kept=kept.data_ptr(),
        token_ids=inputs.token_ids.data_ptr(),
        context_lens=inputs.context_lens.data_ptr(),
        positions=inputs.positions.data_ptr(),
        slots=inputs.slots.data_ptr(),
        block_tables=inputs.block_tables.data_ptr(),
        most_rows=len(chosen),
        most_tokens=inputs.slots.shape[1],
        most_sequences=sequences,
        most_blocks=blocks,
        groups=groups,
        block_size=block_size,
    )
    launch("advance", args, chosen, kept, inputs)
    return kept
