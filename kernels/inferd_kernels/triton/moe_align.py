"""Order the rows of a batch by expert: what the grouped products read.

`moe_align` cuts the T k rows into blocks of BLOCK_M rows of one expert each, on the device and in the order of the
rows, so the grid of the products depends on no count that the host would have to read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Blocks(NamedTuple):
    """Rows by expert, padded to whole blocks."""

    rows: torch.Tensor
    """[max blocks * BLOCK_M] int32 indices into the T k rows; T k itself = padding"""
    experts: torch.Tensor
    """[max blocks] int32 expert of each block; -1 = unused"""
    block_m: int


def align_reference(experts: torch.Tensor, num_experts: int, block_m: int) -> tuple[list[list[int]], list[int]]:
    """Return the rows of each used block and their experts."""
    flat, blocks, owners = experts.flatten().tolist(), [], []
    for expert in range(num_experts):
        rows = [row for row, other in enumerate(flat) if other == expert]
        for start in range(0, len(rows), block_m):
            blocks.append(rows[start : start + block_m])
            owners.append(expert)
    return blocks, owners


@triton.jit(do_not_specialize=["num_rows"])
def count_kernel(p_experts, p_counts, num_rows, BLOCK: tl.constexpr):
    """One program an expert: how many rows are its own."""
    i_expert = tl.program_id(0)
    b_count = tl.zeros([BLOCK], dtype=tl.int32)
    for i_first in range(0, num_rows, BLOCK):
        o_r = i_first + tl.arange(0, BLOCK)
        b_expert = tl.load(p_experts + o_r, mask=o_r < num_rows, other=-1)
        b_count += (b_expert == i_expert).to(tl.int32)
    tl.store(p_counts + i_expert, tl.sum(b_count, 0))


@triton.jit(do_not_specialize=["num_rows"])
def place_kernel(
    p_experts, p_counts, p_rows, p_owners, num_rows, NUM_EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program an expert: its rows in order, padding after them, and its name on its blocks."""
    i_expert = tl.program_id(0)
    o_e = tl.arange(0, BLOCK_E)
    b_blocks = tl.cdiv(tl.load(p_counts + o_e, mask=o_e < NUM_EXPERTS, other=0), BLOCK_M)
    i_block = tl.sum(tl.where(o_e < i_expert, b_blocks, 0), 0)
    num_blocks = tl.sum(tl.where(o_e == i_expert, b_blocks, 0), 0)
    i_next = i_block * BLOCK_M
    for i_first in range(0, num_rows, BLOCK):
        o_r = i_first + tl.arange(0, BLOCK)
        b_own = (tl.load(p_experts + o_r, mask=o_r < num_rows, other=-1) == i_expert).to(tl.int32)
        o_at = i_next + tl.cumsum(b_own, 0) - 1
        tl.store(p_rows + o_at, o_r, mask=b_own > 0)
        i_next += tl.sum(b_own, 0)
    o_m = tl.arange(0, BLOCK_M)
    i_end = (i_block + num_blocks) * BLOCK_M
    tl.store(p_rows + i_next + o_m, tl.zeros([BLOCK_M], dtype=tl.int32) + num_rows, mask=i_next + o_m < i_end)
    for i_own in range(num_blocks):
        tl.store(p_owners + i_block + i_own, i_expert)


def moe_align(experts: torch.Tensor, num_experts: int, block_m: int) -> Blocks:
    """Order the rows of experts [T, k] int32 into blocks of one expert each."""
    num_rows, device = experts.numel(), experts.device
    max_blocks = min(num_rows, triton.cdiv(num_rows, block_m) + num_experts)
    rows = torch.empty(max_blocks * block_m, dtype=torch.int32, device=device)
    owners = torch.full((max_blocks,), -1, dtype=torch.int32, device=device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    block = min(1024, triton.next_power_of_2(num_rows))
    count_kernel[(num_experts,)](experts, counts, num_rows, BLOCK=block, num_warps=4)
    place_kernel[(num_experts,)](
        experts,
        counts,
        rows,
        owners,
        num_rows,
        NUM_EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_M=block_m,
        BLOCK=block,
        num_warps=4,
    )
    return Blocks(rows, owners, block_m)
