"""Small operators around the model: rows by index, the output matrix with the choice of tokens, peaks of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.program import RowCount, empty, launch
from inferd_kernels.cpu.rows import float_rows
from inferd_kernels.cpu.structs import ArgmaxArgs, GatherArgs, HeadArgs

if TYPE_CHECKING:
    from inferd_kernels.cpu.linear import CpuKernel, PackedMatrix

HEAD_SEGMENT = 512
"""Columns of the output matrix that one piece of work multiplies and reduces."""
HEAD_ROWS = 32
"""Rows it takes at a time."""
SEGMENT_BYTES = 16


class Peaks(NamedTuple):
    values: torch.Tensor
    """[R] largest value; NaN where a row holds one."""
    ids: torch.Tensor
    """[R] int64, the lowest index of it."""


def gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows of x [T, K] at `index` [R] int32."""
    return _gather(x, index, empty((len(index), x.shape[1])))


def compact(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Move rows of x [T, K] at `index` [R] int32, which ascends, to the front of it; return x."""
    return _gather(x, index, x)


def _gather(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    x = float_rows(x)
    count = RowCount(len(index))
    args = GatherArgs(count.address, index.data_ptr(), x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0))
    args.columns = x.shape[1]
    launch("gather", args, index)
    return out


SLOT_CHOICE = np.dtype(
    [
        ("seed", np.int64),
        ("temperature", np.float32),
        ("log_min_p", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int32),
        ("filtered", np.int32),
        ("keep", np.int32),
        ("history", np.int64),
        ("bias_ids", np.int64),
        ("bias", np.int64),
        ("num_bias", np.int32),
        ("repetition", np.float32),
        ("frequency", np.float32),
        ("presence", np.float32),
    ]
)
"""`struct slot_choice`: what the sequence of an executor slot asks of the choice of its tokens."""
HISTORY_PROMPT = 1 << 30
"""Added to a token's count in a history where the prompt has the token."""
BAD_LOGITS, NO_TOKEN = -1, -2
"""Instead of a token: a logit is NaN or none is finite; the request's own edits leave nothing."""


class RowInputs(NamedTuple):
    """What `choose` reads of a step, at addresses that stay."""

    slots: np.ndarray
    """[slots] of SLOT_CHOICE"""
    row_slots: torch.Tensor
    """[R] int32, executor slot of each sampled row"""
    row_masks: np.ndarray
    """[R] int64, address of the tokens that each may choose, as bits (bit i of 32-bit word w for 32 w + i); 0: all"""
    token_ids: torch.Tensor
    """[T] int32"""
    positions: torch.Tensor
    """[T] int64"""
    sample_rows: torch.Tensor
    """[R] int32, index into the tokens of the step"""


class Choices(NamedTuple):
    logits: torch.Tensor
    """[R, N] float32 as the model gave them; written only for rows whose slot says `keep` or `filtered`"""
    peaks: torch.Tensor
    """[R] largest logit; NaN where a row holds one"""
    ids: torch.Tensor
    """[R] int64; BAD_LOGITS where the peak is not finite, NO_TOKEN where nothing may be chosen"""


def choose(kernel: CpuKernel, x: Any, weight: PackedMatrix, bias: torch.Tensor | None, inputs: RowInputs) -> Choices:
    """Multiply rows x [R, K], in the kernel's input format, and choose a token for each.

    Tokens equal those of `inferd.engine.sampler` on the same logits, edited or not. Greedy rows and those with a
    temperature alone never write their logits.
    """
    rows, columns = x.shape[0], weight.shape[0]
    segments = -(-columns // HEAD_SEGMENT)
    load().reserve(max(4 * HEAD_ROWS * HEAD_SEGMENT, 16 * (columns + 32) + 4 * columns))
    call = kernel.gemm_args(x, weight, bias)
    out = Choices(empty((rows, columns)), empty((rows,)), empty((rows,), torch.int64))
    best = empty((rows * segments, SEGMENT_BYTES), torch.uint8)
    call.args.y, call.args.y_stride = out.logits.data_ptr(), out.logits.stride(0)
    count = RowCount(rows)
    args = HeadArgs(
        rows=count.address,
        gemm=call.args,
        slots=inputs.slots.ctypes.data,
        row_slots=inputs.row_slots.data_ptr(),
        row_masks=inputs.row_masks.ctypes.data,
        token_ids=inputs.token_ids.data_ptr(),
        positions=inputs.positions.data_ptr(),
        sample_rows=inputs.sample_rows.data_ptr(),
        segments=best.data_ptr(),
        peak=out.peaks.data_ptr(),
        index=out.ids.data_ptr(),
    )
    args.gemm.rows = count.address
    launch("head", args, inputs, weight, bias, call, reads=weight.reads)
    launch("choose", args, inputs, best)
    return out


def argmax(x: torch.Tensor) -> Peaks:
    """Return the largest value of each row of x [R, N] and where it first stands."""
    x = float_rows(x)
    peaks = Peaks(empty((x.shape[0],)), empty((x.shape[0],), torch.int64))
    count = RowCount(x.shape[0])
    args = ArgmaxArgs(count.address, x.data_ptr(), x.stride(0), peaks.values.data_ptr(), peaks.ids.data_ptr())
    args.columns = x.shape[1]
    launch("argmax", args)
    return peaks
