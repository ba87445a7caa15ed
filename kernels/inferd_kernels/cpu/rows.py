"""Rows for the multiplications: normed, gated or as they are; quantized or plain."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from inferd_kernels.cpu.program import RowCount, empty, launch, recording
from inferd_kernels.cpu.structs import (
    GROUP,
    GROUP_BYTES,
    OUTLIER_BYTES,
    SOURCE_NORM,
    SOURCE_PLAIN,
    SOURCE_SILU,
    Int8RowsStruct,
    QuantArgs,
    address_of,
)

DEFERRED_ROWS = 2
"""Steps of so few rows quantize inside the multiplication: once a thread, but without a barrier."""
SCRATCH_BYTES, MADE_BYTES = 1 << 20, 1 << 18
"""Of each thread, and of these for a row before it is quantized, as in `src/kernels.h`."""
MOST_COLUMNS = MADE_BYTES // 4
"""Of a row that is quantized."""

OUTLIER_ABOVE = 2.0
"""Squared scale of a group, in means of its row, above which its largest value is kept as it is."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows [T, K] as groups of 32 int8 codes with a scale and sums, in records of `GROUP_BYTES`.

    The largest values of some groups are kept apart: `counts` of them a row, each with its column.
    """

    shape: tuple[int, int]
    groups: torch.Tensor
    outliers: torch.Tensor
    counts: torch.Tensor
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


def quantize(x: torch.Tensor, *, outlier_above: float = OUTLIER_ABOVE) -> Int8Rows:
    """Quantize plain rows [T, K]."""
    return _int8(x, x.shape[1], SOURCE_PLAIN, outlier_above=outlier_above)


def norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Int8Rows:
    """RMSNorm, then quantize."""
    return _int8(x, x.shape[1], SOURCE_NORM, weight, eps)


def silu_rows(gate_up: torch.Tensor) -> Int8Rows:
    """silu(gate) * up of rows [T, 2 K], then quantize."""
    return _int8(gate_up, gate_up.shape[1] // 2, SOURCE_SILU)


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
    outlier_above: float = OUTLIER_ABOVE,
) -> Int8Rows:
    x = float_rows(x)
    rows, groups = x.shape[0], -(-columns // GROUP)
    made = empty((rows, groups * GROUP_BYTES), torch.uint8)
    outliers, counts = empty((rows, groups * OUTLIER_BYTES), torch.uint8), empty((rows,), torch.int32)
    args = _args(x, columns, source, weight, eps)
    args.out = Int8RowsStruct(made.data_ptr(), outliers.data_ptr(), counts.data_ptr())
    args.outlier_above = outlier_above
    if recording() is not None:
        args.deferred = min(DEFERRED_ROWS, (SCRATCH_BYTES - MADE_BYTES) // (groups * (GROUP_BYTES + OUTLIER_BYTES) + 4))
    count = RowCount(rows)
    args.rows = count.address
    launch("quantize", args, weight)
    return Int8Rows((rows, columns), made, outliers, counts, args, (x, weight, count))


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
