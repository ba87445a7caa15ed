"""Linear layers by (weight form, device): the place where packed kernels join.

A kernel that computes on a packed form registers for it; without one a weight is dequantised once,
at load, and torch multiplies. Embedding rows are gathered from the packed form in any case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F

from inferd_kernels.reference.forms import Packed, dequantize

InputFormat = Literal[
    "plain",
    "device rows",
    "device int8 rows",
    "device fp8 rows",
    "native rows",
    "bf16 rows",
    "int8 rows",
]
"""What `linear` reads: float rows made by torch, by Triton on a GPU, or by a native operator (so that a step can be
recorded); rows that Triton quantized, one scale a row; native rows rounded to bf16; or native int8 rows with scales,
group sums and outliers kept as floats."""

Rounding = Literal["", "int8", "fp8", "bf16"]
"""What rows are rounded to before they are multiplied; empty = nothing."""

Choice = Literal["auto", "native", "torch"]
"""Which kernels of this module to use on the CPU: native ones where they can be had, only those, or none."""


class RowTable(NamedTuple):
    """A weight whose rows are looked up; its planes keep rows apart. Satisfies `Packed`."""

    form: str
    shape: tuple[int, ...]
    planes: Mapping[str, torch.Tensor]
    group: int
    zero: int
    permutation: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes.values())


class WeightImage(NamedTuple):
    """A prepared weight as it can be kept in a file."""

    about: dict[str, int]
    data: torch.Tensor
    """Bytes, flat."""


class LinearKernel(ABC):
    """Multiply by weights of one form on one device."""

    input_format: InputFormat = "plain"
    rounds_rows: Rounding = ""
    """Multiplies rounded rows: outputs come close to those of the weights, not equal."""
    packed: bool = True
    """Computes on the packed form; False: `prepare` made a dequantised copy."""
    capture_safe: bool = False
    """Every method can be recorded (see `inferd_kernels.cpu`) or captured in a graph."""
    rows_of_weight: bool = False
    """`rows` reads what `prepare` made, so that tied embeddings need no table of their own."""

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        """Say whether this kernel computes on such a weight with rows of `dtype`."""
        return True

    def rounds_for(self, stored: str) -> bool:
        """Say whether it would multiply a tensor of this storage type by rounded rows."""
        return bool(self.rounds_rows)

    @abstractmethod
    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> Any:
        """Copy a weight [N, K] to the device in the order this kernel wants."""

    @abstractmethod
    def linear(
        self,
        x: Any,
        weight: Any,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return x [T, K], in the input format, times the weight: [T, N], plus `residual` if given.

        `out` is where to put it: a view whose last dimension is contiguous.
        """

    def empty(self, rows: int, columns: int, like: Any) -> torch.Tensor:
        """Return memory for the joined output of several weights that read `like`."""
        return torch.empty(rows, columns, dtype=like.dtype, device=like.device)

    def grouped_linear(self, x: torch.Tensor, weights: Sequence[Any], offsets: Sequence[int]) -> torch.Tensor:
        """Multiply rows offsets[e]:offsets[e + 1] of x by weights[e] (experts); returns [T, N]."""
        parts = [self.linear(x[a:b], w) for w, a, b in zip(weights, offsets, offsets[1:], strict=False)]
        return torch.cat(parts)

    def prepare_rows(self, weight: Packed, *, device: str, dtype: torch.dtype = torch.float32) -> Any:
        """Copy a weight [N, K] to the device for `rows` of `dtype`, here in the form it is stored in."""
        planes, form = weight.planes, weight.form
        if any(plane.shape[0] != weight.shape[0] for plane in planes.values()):
            planes, form = {"weight": dequantize(weight)}, "dense"
        placed = {name: plane.to(device, copy=True) for name, plane in planes.items()}
        return RowTable(form, weight.shape, placed, weight.group, weight.zero, weight.permutation)

    def rows(self, table: Any, ids: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        """Return `scale` times the rows at `ids` [T] as [T, K] (embedding lookup)."""
        picked = {name: plane.index_select(0, ids) for name, plane in table.planes.items()}
        rows = dequantize(table._replace(shape=(len(ids), *table.shape[1:]), planes=picked)).to(dtype)
        return rows if scale == 1.0 else rows * scale

    def nbytes(self, weight: Any) -> int:
        """Bytes a prepared weight takes on the device."""
        return weight.numel() * weight.element_size()

    def image(self, weight: Any) -> WeightImage | None:
        """Return what `prepare` or `prepare_rows` made in a form that can be kept; None = it is made at every load."""
        return None

    def from_image(self, image: WeightImage) -> Any:
        """Return the weight of an image, on its memory."""
        raise NotImplementedError(f"{type(self).__name__} makes no images of weights")


class DenseLinear(LinearKernel):
    """Float weights through torch.

    On the CPU float32 weights are packed into oneDNN's blocked order where this torch can: one to some
    hundred rows then multiply up to five times as fast as by the BLAS torch calls otherwise.
    """

    def __init__(self) -> None:
        self._onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> torch.Tensor:
        values = weight.planes["weight"].view(weight.shape) if weight.form == "dense" else dequantize(weight)
        values = values.to(device=device, dtype=dtype, copy=True)
        if self._onednn and device == "cpu" and dtype == torch.float32:
            return torch.ops.mkldnn._reorder_linear_weight(values, None)
        return values

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if weight.is_mkldnn:
            y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        else:
            y = F.linear(x, weight, bias)
        if residual is not None:
            y = residual + y
        return y if out is None else out.copy_(y)


class DequantizedLinear(DenseLinear):
    """The default for every form without a kernel of its own."""

    packed = False


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """Kernels by (form, device type), the preferred first; built once and handed to the loader."""

    table: Mapping[tuple[str, str], LinearKernel | Sequence[LinearKernel]]
    default: LinearKernel
    missing: str = ""
    """Why the native kernels are not in the table, where they should be."""
    isa: str = ""
    """Instruction-set tier of the kernels that make images."""
    layout: str = ""
    """Changes whenever images of before are of no more use; empty = no kernel makes any."""
    triton: bool = False
    """They are Triton's, which read and write rows on the device."""

    def candidates(self, form: str, device: str) -> Sequence[LinearKernel]:
        """All kernels of a form, ending with the one that takes any."""
        found = self.table.get((form, device.split(":")[0]), ())
        return [*(found if isinstance(found, Sequence) else (found,)), self.default]

    def lookup(self, form: str, device: str) -> LinearKernel:
        """Return the preferred kernel of a form."""
        return self.candidates(form, device)[0]

    def choose(self, weight: Packed, device: str, dtype: torch.dtype) -> LinearKernel:
        """Return the preferred kernel that takes this weight."""
        return next(k for k in self.candidates(weight.form, device) if k.accepts(weight, dtype))

    def named(self, name: str, forms: Sequence[str], device: str) -> LinearKernel | None:
        """Return the kernel of a class name that multiplies these forms, where there is one."""
        found = (k for form in forms for k in self.candidates(form, device) if type(k).__name__ == name)
        return next(found, None)


def default_kernels(choice: Choice = "torch") -> LinearKernels:
    """All kernels of this package. Raises ValueError where `native` ones were asked for and are not built."""
    dense = DenseLinear()
    table: dict[tuple[str, str], Sequence[LinearKernel]] = {("dense", "cpu"): [dense], ("dense", "cuda"): [dense]}
    if choice == "torch":
        return LinearKernels(table, DequantizedLinear())
    from inferd_kernels.cpu.library import why_missing

    missing = why_missing()
    if missing and choice == "native":
        raise ValueError(f"engine.linear = 'native', but {missing}")
    isa = layout = ""
    if not missing:
        from inferd_kernels.cpu.library import load
        from inferd_kernels.cpu.linear import LAYOUT, CpuBf16Linear, CpuDenseLinear, CpuPackedLinear

        isa, layout = load().tier, f"{LAYOUT}-{load().source_hash}"
        packed = CpuPackedLinear()
        floats = [CpuBf16Linear()] if load().multiplies_bf16 else []
        table[("dense", "cpu")] = [*floats, CpuDenseLinear(), dense]
        table |= {(form, "cpu"): [packed] for form in ("u4_group", "i8_group", "i8_channel")}
    return LinearKernels(table, DequantizedLinear(), missing, isa, layout)
