"""Memory for tests: tensors among values that nobody owns, and tensors whose elements lie further apart than 2^31."""

from __future__ import annotations

import mmap

import torch

NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python names from 3.13 on."""


def nan_like(x: torch.Tensor) -> None:
    """Fill with NaN; 8-bit types, of which not all have one, with their largest bits."""
    if x.element_size() == 1:
        x.view(torch.uint8).fill_(0x7F)
    else:
        x.fill_(float("nan"))


def among_nan(x: torch.Tensor, columns: int = 0) -> torch.Tensor:
    """Return a copy of x [rows, K] in memory that holds NaN before and after it, and `columns` of it after each row."""
    rows, width = x.shape
    memory = torch.empty(rows + 2, width + columns, dtype=x.dtype)
    nan_like(memory)
    view = memory[1:-1, :width]
    view.copy_(x)
    return view


def untouched(x: torch.Tensor) -> bool:
    """Say whether all NaN around the columns of an `among_nan` are still there."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).view(-1, x.stride(0))
    kept = whole.clone()
    kept[1:-1, : x.shape[1]] = float("nan")
    return bool(kept.isnan().all())


def sparse(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return so many zeros that take memory only where they are touched."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=kind), dtype=dtype)


def far_rows(x: torch.Tensor, stride: int) -> torch.Tensor:
    """Return a copy of x [rows, ...] whose rows are `stride` elements apart."""
    inner = x[0].numel()
    apart = sparse((len(x) - 1) * stride + inner, x.dtype)
    view = apart.as_strided(x.shape, (stride, *x[0].contiguous().stride()))
    view.copy_(x)
    return view
