"""Rows for the multiplications: normed, gated or as they are; quantized or plain."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from inferd_kernels.cpu.program import RowCount, empty, launch, recording
from inferd_kernels.cpu.structs import (
    GROUP,
    GROUP_BYTES,
    MARKS,
    SOURCE_NORM,
    SOURCE_PLAIN,
    SOURCE_SILU,
    Int8RowsStruct,
    QuantArgs,
    address_of,
)

DEFERRED_ROWS = 2
"""Steps of so few rows quantize inside the multiplication: once a thread, but without a barrier."""
SCRATCH_BYTES = 1 << 20
"""Of each thread, as in `src/kernels.h`."""

MIXED = 2.0
"""Squared scale of a group, in means of its row, above which mixed rows keep a second byte a value."""

Fine = float | None
"""From which squared scale on, in means of the row, a group gets fine codes; 0: all groups, None: none."""

FINE: dict[str, Fine] = {"int8 rows": None, "mixed rows": MIXED, "int16 rows": 0.0}
"""By input format of a linear kernel."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows [T, K] as groups of 32 int8 codes with a scale and sums, in records of `GROUP_BYTES`.

    Groups may have a second byte a value, what rounding to the first left over; `marks` says which do.
    """

    shape: tuple[int, int]
    groups: torch.Tensor
    fine: torch.Tensor | None
    marks: torch.Tensor | None
    args: QuantArgs
    kept: tuple[object, ...]
    """What `args` points to: a recorded multiplication may make the rows itself."""


@dataclass(frozen=True, slots=True)
class Bf16Rows:
    """Rows [T, K] rounded to bf16, filled up with zeros to whole groups of 32 columns."""

    shape: tuple[int, int]
    halves: torch.Tensor
    args: QuantArgs
    kept: tuple[object, ...]


def quantize(x: torch.Tensor, *, fine: Fine = None) -> Int8Rows:
    """Quantize plain rows [T, K]."""
    return _int8(x, x.shape[1], SOURCE_PLAIN, fine=fine)


def norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float, *, fine: Fine = None) -> Int8Rows:
    """RMSNorm, then quantize."""
    return _int8(x, x.shape[1], SOURCE_NORM, weight, eps, fine=fine)


def silu_rows(gate_up: torch.Tensor, *, fine: Fine = None) -> Int8Rows:
    """silu(gate) * up of rows [T, 2 K], then quantize."""
    return _int8(gate_up, gate_up.shape[1] // 2, SOURCE_SILU, fine=fine)


def round_rows(x: torch.Tensor) -> Bf16Rows:
    """Round plain rows [T, K] to bf16."""
    return _bf16(x, x.shape[1], SOURCE_PLAIN)


def norm_bf16(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Bf16Rows:
    """RMSNorm, then round to bf16."""
    return _bf16(x, x.shape[1], SOURCE_NORM, weight, eps)


def silu_bf16(gate_up: torch.Tensor) -> Bf16Rows:
    """silu(gate) * up of rows [T, 2 K], then round to bf16."""
    return _bf16(gate_up, gate_up.shape[1] // 2, SOURCE_SILU)


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
    fine: Fine = None,
) -> Int8Rows:
    x = float_rows(x)
    rows, groups = x.shape[0], -(-columns // GROUP)
    words = -(-groups // MARKS)
    made = empty((rows, groups * GROUP_BYTES), torch.uint8)
    rest = marks = None
    args = _args(x, columns, source, weight, eps)
    args.out = Int8RowsStruct(groups=made.data_ptr())
    if fine is not None:
        rest, marks = empty((rows, groups * GROUP), torch.int8), empty((rows, words), torch.int64)
        args.out.fine, args.out.marks, args.fine_above = rest.data_ptr(), marks.data_ptr(), fine
    if recording() is not None:
        args.deferred = min(DEFERRED_ROWS, SCRATCH_BYTES // (groups * (GROUP_BYTES + GROUP) + 8 * words))
    count = RowCount(rows)
    args.rows = count.address
    launch("quantize", args, weight)
    return Int8Rows((rows, columns), made, rest, marks, args, (x, weight, count))


def _bf16(x: torch.Tensor, columns: int, source: int, weight: torch.Tensor | None = None, eps: float = 0.0) -> Bf16Rows:
    x = float_rows(x)
    padded = -(-columns // GROUP) * GROUP
    made = empty((x.shape[0], padded), torch.bfloat16)
    args = _args(x, columns, source, weight, eps)
    args.out = Int8RowsStruct(halves=made.data_ptr())
    if recording() is not None:
        args.deferred = min(DEFERRED_ROWS, SCRATCH_BYTES // (2 * padded))
    count = RowCount(x.shape[0])
    args.rows = count.address
    launch("quantize", args, weight)
    return Bf16Rows((x.shape[0], columns), made, args, (x, weight, count))


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
        weight=address_of(weight),
        columns=columns,
        source=source,
        eps=eps,
    )


def source_of(rows: Int8Rows | Bf16Rows) -> int | None:
    """Address of what made the rows, for a recorded multiplication that may make them itself."""
    return ctypes.addressof(rows.args) if recording() is not None else None
