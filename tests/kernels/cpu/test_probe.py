"""The operator that measures the machine does the work that it is timed for."""

from __future__ import annotations

import pytest
import torch

from inferd_kernels.cpu.library import Library
from inferd_kernels.cpu.program import launch
from inferd_kernels.cpu.structs import ProbeArgs
from tests.bench.roofline import CHAINS, CODES, FLOATS, PAIRS, READ, Machine, judge

ONES = {
    CODES: (torch.ones(64, dtype=torch.int8), 4),
    FLOATS: (torch.ones(16), 1),
    PAIRS: (torch.ones(32, dtype=torch.bfloat16), 2),
}
"""Numbers that are 1, and what a product of them adds to a lane."""


def run(kind: int, data: torch.Tensor, turns: int, threads: int) -> torch.Tensor:
    out = torch.full((threads,), -1.0)
    launch("probe", ProbeArgs(data.data_ptr(), data.nbytes, turns, out.data_ptr(), kind))
    return out


def test_threads_read_the_whole_buffer(tier: str, library: Library) -> None:
    library.set_threads(2)
    for place in (0, 1023, 1024, 2047):
        data = torch.zeros(2048)
        data[place] = 5
        assert run(READ, data, 1, 2).tolist() == ([5, 0] if place < 1024 else [0, 5])


@pytest.mark.parametrize("kind", ONES)
def test_every_turn_multiplies(tier: str, kind: int, library: Library) -> None:
    data, gain = ONES[kind]
    turns = 7
    want = sum(range(CHAINS)) + CHAINS * gain * turns
    if kind == PAIRS and tier != "avx512bf16":
        want = 0
    assert run(kind, data, turns, library.threads).tolist() == [want] * library.threads


def test_the_limit_is_the_slower_of_reading_and_multiplying() -> None:
    machine = Machine("scalar", 1, read=1e9, codes=4e9, pairs=2e9, floats=1e9)
    memory = judge(machine, "a", seconds=0.5, num_bytes=2e8, macs=4e8, peak="codes")
    assert (memory.bound, memory.fraction, memory.gb_s, memory.gmac_s) == ("memory", 0.4, 0.4, 0.8)
    assert judge(machine, "b", seconds=0.5, num_bytes=2e8, macs=4e8, peak="floats").bound == "floats"
