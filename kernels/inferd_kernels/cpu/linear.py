"""Linear kernels on packed weights: u4_group and i8_group by integer dot products, bf16 by its own, floats exactly."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from inferd_kernels.cpu.library import Reads
from inferd_kernels.cpu.pages import Slabs
from inferd_kernels.cpu.program import RowCount, empty, launch
from inferd_kernels.cpu.rows import MOST_COLUMNS, Bf16Rows, Int8Rows, float_rows, quantize, round_rows, source_of
from inferd_kernels.cpu.structs import GROUP, NUMBERS, EmbedArgs, GemmArgs, PackArgs, address_of
from inferd_kernels.linear import LinearKernel, RowTable, WeightImage
from inferd_kernels.reference.forms import Packed

BITS = {"u4_group": 4, "i8_group": 8}
PAGE, LINE = 4096, 64
"""Bytes."""
LAYOUT = 1
"""Version of what `prepare` makes, as far as this file decides it; the C sources have their own hash."""
DESCRIBED = tuple(field[0] for field in GemmArgs._fields_ if field[1] is ctypes.c_int32)
"""The fields of `GemmArgs` that say how a weight is stored."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight [N, K] in the order of `src/gemm.h`."""

    shape: tuple[int, int]
    data: torch.Tensor
    args: GemmArgs
    """Describes the weight; copied for every call."""

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def reads(self) -> Reads:
        """Its blocks of columns, which threads share out."""
        blocks = max(1, -(-self.shape[0] // 16))
        return Reads(self.data.data_ptr(), blocks, self.data.nbytes // blocks)


class GemmCall(NamedTuple):
    """Arguments of a multiplication, and the rows they point to."""

    args: GemmArgs
    kept: object


class CpuKernel(LinearKernel):
    """What both kinds share: calls, embedding rows, sizes."""

    capture_safe = True
    rows_of_weight = True

    def __init__(self) -> None:
        self._memory = Slabs()

    def prepare_rows(self, weight: Packed, *, device: str, dtype: torch.dtype = torch.float32) -> PackedMatrix:
        return self.prepare(weight, device=device, dtype=torch.float32)

    def rows(self, table: PackedMatrix, ids: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        y = empty((len(ids), table.shape[1]))
        count = RowCount(len(ids))
        ids = ids.to(torch.int32)
        args = EmbedArgs(count.address, ids.data_ptr(), table.args, y.data_ptr(), y.stride(0), scale)
        launch("embed", args, table, ids)
        return y.to(dtype)

    def empty(self, rows: int, columns: int, like: Any) -> torch.Tensor:
        return _output(rows, columns)

    def nbytes(self, weight: PackedMatrix) -> int:
        return weight.data.nbytes

    @abstractmethod
    def gemm_args(self, x: Any, weight: PackedMatrix, bias: torch.Tensor | None = None) -> GemmCall:
        """Describe a multiplication of x, in the input format, without its output."""

    def linear(
        self,
        x: Any,
        weight: PackedMatrix,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        call = self.gemm_args(x, weight, bias)
        # `call` keeps what was made of x alive until here, so the output lies elsewhere.
        return self._multiply(call.args, x.shape[0], weight, bias, residual, out)

    def image(self, weight: PackedMatrix) -> WeightImage:
        return WeightImage({name: getattr(weight.args, name) for name in DESCRIBED}, weight.data)

    def from_image(self, image: WeightImage) -> PackedMatrix:
        args = GemmArgs(weights=image.data.data_ptr(), **image.about)
        return PackedMatrix((args.n, args.columns), image.data, args)

    def _multiply(
        self,
        args: GemmArgs,
        rows: int,
        weight: PackedMatrix,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        y = _output(rows, weight.shape[0]) if out is None else out
        count = RowCount(rows)
        args.rows, args.y, args.y_stride = count.address, y.data_ptr(), y.stride(0)
        if residual is not None:
            args.residual, args.residual_stride = residual.data_ptr(), residual.stride(0)
        launch("gemm", args, weight, bias, reads=weight.reads)
        return y


class CpuPackedLinear(CpuKernel):
    """4- and 8-bit groups. Norms and gates quantize rows by 32 columns for them; outliers stay floats."""

    input_format = "int8 rows"
    rounds_rows = "int8"

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        weight = _grouped(weight)
        scales, mins = weight.planes["scales"], weight.planes.get("mins")
        return (
            weight.form in BITS
            and dtype == torch.float32
            and weight.permutation is None
            and len(weight.shape) == 2
            and (weight.group == 16 or weight.group % GROUP == 0)
            and weight.shape[1] % weight.group == 0
            and weight.shape[1] <= MOST_COLUMNS
            and scales.dtype in NUMBERS
            and (mins is None or mins.dtype == scales.dtype)
        )

    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> PackedMatrix:
        weight = _grouped(weight)
        (n, k), bits = weight.shape, BITS[weight.form]
        scales, mins = weight.planes["scales"].contiguous(), weight.planes.get("mins")
        number, halves = NUMBERS[scales.dtype], 2 if weight.group == 16 else 1
        groups, blocks = -(-k // GROUP), -(-n // 16)
        per_group = bits * 64 + 16 * halves * scales.element_size() * (1 if mins is None else 2)
        data = self._memory.take(blocks * groups * per_group)
        codes = weight.planes["codes"].contiguous()
        mins = None if mins is None else mins.contiguous()
        args = PackArgs(codes.data_ptr(), scales.data_ptr(), address_of(mins), data.data_ptr(), n, k)
        args.group, args.bits, args.number = weight.group, bits, number
        launch("pack", args)
        zero = weight.zero + (128 if bits == 8 else 0)
        described = GemmArgs(weights=data.data_ptr(), n=n, columns=k, groups=groups, bits=bits, halves=halves)
        described.zero, described.number, described.has_min = zero, number, mins is not None
        return PackedMatrix((n, k), data, described)

    def gemm_args(self, x: torch.Tensor | Int8Rows, weight: PackedMatrix, bias: torch.Tensor | None = None) -> GemmCall:
        rows = x if isinstance(x, Int8Rows) else quantize(x)
        args = _copy(weight.args)
        args.x, args.source = rows.args.out, source_of(rows)
        args.bias = address_of(bias)
        return GemmCall(args, rows)


class CpuDenseLinear(CpuKernel):
    """Float weights as they are stored, multiplied in float32: no rounding of weights or rows."""

    input_format = "native rows"

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        return weight.form == "dense" and dtype == torch.float32 and weight.planes["weight"].dtype in NUMBERS

    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> PackedMatrix:
        (n, k), values = weight.shape, weight.planes["weight"].contiguous()
        size, depth = values.element_size(), k + k % 2 if values.dtype == torch.bfloat16 else k
        data = self._memory.take(-(-n // 16) * 16 * depth * size)
        args = PackArgs(codes=values.data_ptr(), out=data.data_ptr(), n=n, columns=k, group=GROUP, bits=8 * size)
        args.number = NUMBERS[values.dtype]
        launch("pack", args)
        described = GemmArgs(weights=data.data_ptr(), n=n, columns=k, groups=-(-k // GROUP), bits=8 * size, halves=1)
        described.number = NUMBERS[values.dtype]
        return PackedMatrix((n, k), data, described)

    def gemm_args(self, x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None = None) -> GemmCall:
        x = float_rows(x)
        args = _copy(weight.args)
        args.plain, args.plain_stride = x.data_ptr(), x.stride(0)
        args.bias = address_of(bias)
        return GemmCall(args, x)


class CpuBf16Linear(CpuDenseLinear):
    """bf16 weights by rows rounded to bf16: dot products of pairs, summed in float32."""

    input_format = "bf16 rows"
    rounds_rows = "bf16"

    def rounds_for(self, stored: str) -> bool:
        return stored == "BF16"

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        return super().accepts(weight, dtype) and weight.planes["weight"].dtype == torch.bfloat16

    def gemm_args(self, x: torch.Tensor | Bf16Rows, weight: PackedMatrix, bias: torch.Tensor | None = None) -> GemmCall:
        rows = x if isinstance(x, Bf16Rows) else round_rows(x)
        args = _copy(weight.args)
        args.x, args.source = rows.args.out, source_of(rows)
        args.bias = address_of(bias)
        return GemmCall(args, rows)


def _output(rows: int, columns: int) -> torch.Tensor:
    """Return memory for rows. Whole pages apart they would share sets of the caches: a line parts them."""
    if columns * 4 % PAGE:
        return empty((rows, columns))
    return empty((rows, columns + LINE // 4))[:, :columns]


def _grouped(weight: Packed) -> Packed:
    """Return the weight as groups of columns: a scale a row is one group."""
    if weight.form != "i8_channel":
        return weight
    planes = {**weight.planes, "scales": weight.planes["scales"].unsqueeze(1)}
    return RowTable("i8_group", weight.shape, planes, weight.shape[-1], weight.zero, weight.permutation)


def _copy(args: GemmArgs) -> GemmArgs:
    fresh = GemmArgs()
    ctypes.pointer(fresh)[0] = args
    return fresh
