"""Count the drafts of each sequence that equal what was sampled in their place.

    accepted[s] = number of leading j with draft[s, j] = sampled[row(s) + j]

Row j of a sequence was computed after its first j drafts, so the tokens kept are those of plain decoding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def accept_reference(sampled: torch.Tensor, drafts: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    counts: list[int] = []
    for start, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        count = 0
        while count < end - start - 1 and drafts[start + count] == sampled[start + count]:
            count += 1
        counts.append(count)
    return torch.tensor(counts, dtype=torch.int32)


@triton.jit
def accept_kernel(p_sampled, p_drafts, p_offsets, p_counts, BLOCK_J: tl.constexpr):
    i_seq = tl.program_id(0)
    i_row = tl.load(p_offsets + i_seq)
    num_drafts = tl.load(p_offsets + i_seq + 1) - i_row - 1
    o_j = tl.arange(0, BLOCK_J)
    mask_j = o_j < num_drafts
    b_sampled = tl.load(p_sampled + i_row + o_j, mask=mask_j, other=0)
    b_draft = tl.load(p_drafts + i_row + o_j, mask=mask_j, other=0)
    # The first place that does not count ends the run.
    o_wrong = tl.where(mask_j & (b_sampled == b_draft), BLOCK_J, o_j)
    count = tl.minimum(tl.min(o_wrong, 0), tl.maximum(num_drafts, 0))
    tl.store(p_counts + i_seq, count.to(tl.int32))


def accept(sampled: torch.Tensor, drafts: torch.Tensor, offsets: torch.Tensor, max_draft: int) -> torch.Tensor:
    """Return the accepted drafts [S] int32 of each sequence.

    `sampled` and `drafts` [R] hold, for the rows offsets[s] to offsets[s + 1] of a sequence, what was sampled and
    the draft that stood for it; a sequence's last row has no draft.
    """
    num_seqs = len(offsets) - 1
    counts = torch.empty(num_seqs, dtype=torch.int32, device=sampled.device)
    if num_seqs:
        accept_kernel[(num_seqs,)](
            sampled, drafts, offsets, counts, BLOCK_J=triton.next_power_of_2(max_draft + 1), num_warps=1
        )
    return counts
