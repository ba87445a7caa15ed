"""Rows for the multiplications: normed, gated or as they are; quantized or plain."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from inferd_kernels.cpu.program import RowCount, empty, launch, recording
from inferd_kernels.cpu.structs import (
    GROUP,
    META_BYTES,
    SOURCE_NORM,
    SOURCE_PLAIN,
    SOURCE_SILU,
    Int8RowsStruct,
    QuantArgs,
)

DEFERRED_ROWS = 2
"""Steps of so few rows quantize inside the multiplication: once a thread, but without a barrier."""
SCRATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows [T, K] as int8 codes with a scale, a sum and two half sums for each 32 columns.

    Fine rows carry a second byte a value, what rounding to the first left over.
    """

    shape: tuple[int, int]
    codes: torch.Tensor
    fine: torch.Tensor | None
    meta: torch.Tensor
    args: QuantArgs
    kept: tuple[object, ...]
    """What `args` points to: a recorded multiplication may make the rows itself."""


def quantize(x: torch.Tensor, *, fine: bool = False) -> Int8Rows:
    """Quantize plain rows [T, K]."""
    return _int8(x, x.shape[1], SOURCE_PLAIN, fine=fine)


def norm_int8(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Int8Rows:
    """RMSNorm, then quantize."""
    return _int8(x, x.shape[1], SOURCE_NORM, weight, eps)


def norm_fine(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Int8Rows:
    """RMSNorm, then quantize to about 16 bits."""
    return _int8(x, x.shape[1], SOURCE_NORM, weight, eps, fine=True)


def silu_int8(gate_up: torch.Tensor) -> Int8Rows:
    """silu(gate) * up of rows [T, 2 K], then quantize."""
    return _int8(gate_up, gate_up.shape[1] // 2, SOURCE_SILU)


def silu_fine(gate_up: torch.Tensor) -> Int8Rows:
    """silu(gate) * up of rows [T, 2 K], then quantize to about 16 bits."""
    return _int8(gate_up, gate_up.shape[1] // 2, SOURCE_SILU, fine=True)


def norm_plain(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of float32 rows."""
    return _plain(x, x.shape[1], SOURCE_NORM, weight, eps)


def silu_plain(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of rows [T, 2 K]."""
    return _plain(gate_up, gate_up.shape[1] // 2, SOURCE_SILU)


def float_rows(x: torch.Tensor) -> torch.Tensor:
    """Return float32 rows whose elements are neighbours. Raises ValueError for other types."""
    if x.dtype != torch.float32:
        raise ValueError(f"CPU kernels compute on float32 rows, not on {x.dtype}")
    return x if x.stride(-1) == 1 else x.contiguous()


def _int8(
    x: torch.Tensor,
    columns: int,
    source: int,
    weight: torch.Tensor | None = None,
    eps: float = 0.0,
    *,
    fine: bool = False,
) -> Int8Rows:
    x = float_rows(x)
    rows, groups = x.shape[0], -(-columns // GROUP)
    codes = empty((rows, groups * GROUP), torch.int8)
    rest = empty((rows, groups * GROUP), torch.int8) if fine else None
    meta = empty((rows, groups * META_BYTES), torch.uint8)
    args = _args(x, columns, source, weight, eps)
    args.out = Int8RowsStruct(codes.data_ptr(), None if rest is None else rest.data_ptr(), meta.data_ptr())
    if recording() is not None:
        args.deferred = min(DEFERRED_ROWS, SCRATCH_BYTES // (groups * (2 * GROUP + META_BYTES)))
    count = RowCount(rows)
    args.rows = count.address
    launch("quantize", args, weight)
    return Int8Rows((rows, columns), codes, rest, meta, args, (x, weight, count))


def _plain(
    x: torch.Tensor, columns: int, source: int, weight: torch.Tensor | None = None, eps: float = 0.0
) -> torch.Tensor:
    x = float_rows(x)
    out = empty((x.shape[0], columns))
    args = _args(x, columns, source, weight, eps)
    args.plain = out.data_ptr()
    count = RowCount(x.shape[0])
    args.rows = count.address
    launch("quantize", args, weight)
    return out


def _args(x: torch.Tensor, columns: int, source: int, weight: torch.Tensor | None, eps: float) -> QuantArgs:
    return QuantArgs(
        x=x.data_ptr(),
        x_stride=x.stride(0),
        weight=None if weight is None else weight.data_ptr(),
        columns=columns,
        source=source,
        eps=eps,
    )


def source_of(rows: Int8Rows) -> int | None:
    """Address of what made the rows, for a recorded multiplication that may make them itself."""
    return ctypes.addressof(rows.args) if recording() is not None else None
