"""From one step of decoding to the next: what is kept, and what the next step then reads."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch

from inferd_kernels.cpu.advance import advance
from inferd_kernels.cpu.library import Library
from inferd_kernels.cpu.program import Program

SIZE, MOST = 4, 6
ROWS, SEQUENCES, TOKENS, BLOCKS, GROUPS = 3, 5, 9, 4, 2


@dataclass
class Inputs:
    token_ids: torch.Tensor
    positions: torch.Tensor
    context_lens: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor


def inputs(starts: list[int]) -> Inputs:
    """Rows at these positions; everything past them holds 99."""
    tables = torch.arange(GROUPS * SEQUENCES * BLOCKS, dtype=torch.int32).flip(0).view(GROUPS, SEQUENCES, BLOCKS)
    made = Inputs(
        torch.full((TOKENS,), 99, dtype=torch.int32),
        torch.full((TOKENS,), 99),
        torch.full((SEQUENCES,), 99, dtype=torch.int32),
        torch.full((GROUPS, TOKENS), 99),
        tables,
    )
    for row, start in enumerate(starts):
        made.token_ids[row], made.positions[row], made.context_lens[row] = 7, start, start + 1
        made.slots[:, row] = tables[:, row, start // SIZE] * SIZE + start % SIZE
    return made


def recorded(made: Inputs, tokens: list[int]) -> tuple[Program, torch.Tensor]:
    """Return a program of which every step chooses these tokens, and where they are kept."""
    program, chosen = Program(), torch.tensor([*tokens, 99, 99])
    with program.record():
        kept = advance(chosen, made, block_size=SIZE, most_steps=MOST)
    return program, kept


@pytest.mark.parametrize("threads", [1, 2])
def test_the_next_step_reads_the_new_token_one_position_further(library: Library, threads: int) -> None:
    library.set_threads(threads)
    made = inputs([0, 2, 7])
    program, kept = recorded(made, [11, 12, -1])
    assert program.run(tokens=ROWS, sequences=ROWS, sampled=ROWS, steps=4) == 4
    assert kept[:4, :ROWS].tolist() == [[11, 12, -1]] * 4
    assert bool((kept[4:] == 0).all())
    assert made.positions.tolist() == [3, 5, 10] + [99] * 6, "three times: nothing follows the last"
    assert made.token_ids.tolist() == [11, 12, 0] + [99] * 6, "what could not be chosen is passed on as 0"
    assert made.context_lens.tolist() == [4, 6, 11, 99, 99]
    want = inputs([3, 5, 10])
    assert torch.equal(made.slots, want.slots)


def test_a_call_of_one_step_leaves_everything(library: Library) -> None:
    made, want = inputs([0, 2, 7]), inputs([0, 2, 7])
    program, kept = recorded(made, [11, 12, 13])
    assert program.run(tokens=ROWS, sequences=ROWS, sampled=ROWS) == 1
    assert all(torch.equal(getattr(made, name), getattr(want, name)) for name in vars(want))
    assert not bool(kept.any())


def test_a_readable_file_ends_a_call_between_two_steps(library: Library) -> None:
    there, sender = os.pipe()
    made = inputs([0, 2, 7])
    program, _ = recorded(made, [11, 12, 13])
    counts = {"tokens": ROWS, "sequences": ROWS, "sampled": ROWS, "steps": 3, "news": there}
    assert program.run(**counts) == 3
    os.write(sender, b"x")
    assert program.run(**counts) == 1
    os.read(there, 1)
    assert program.run(**counts) == 3
    os.close(there)
    os.close(sender)
