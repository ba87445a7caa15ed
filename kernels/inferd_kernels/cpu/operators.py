"""Small operators around the model: rows by index, and the most likely token of each row."""

from __future__ import annotations

from typing import NamedTuple

import torch

from inferd_kernels.cpu.program import RowCount, empty, launch
from inferd_kernels.cpu.rows import float_rows
from inferd_kernels.cpu.structs import ArgmaxArgs, GatherArgs


class Peaks(NamedTuple):
    values: torch.Tensor
    """[R] largest value; NaN where a row holds one."""
    ids: torch.Tensor
    """[R] int64, the lowest index of it."""


def gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows of x [T, K] at `index` [R] int32."""
    x = float_rows(x)
    out = empty((len(index), x.shape[1]))
    count = RowCount(len(index))
    args = GatherArgs(count.address, index.data_ptr(), x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0))
    args.columns = x.shape[1]
    launch("gather", args, index)
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
