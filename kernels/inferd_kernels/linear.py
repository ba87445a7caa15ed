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

InputFormat = Literal["plain", "int8 rows"]
"""What `linear` reads: plain float rows, or int8 rows with scales and group sums."""


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


class LinearKernel(ABC):
    """Multiply by weights of one form on one device."""

    input_format: InputFormat = "plain"
    packed: bool = True
    """Computes on the packed form; False: `prepare` made a dequantised copy."""

    @abstractmethod
    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> Any:
        """Copy a weight [N, K] to the device in the order this kernel wants."""

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x [T, K] times the weight: [T, N]."""

    def grouped_linear(self, x: torch.Tensor, weights: Sequence[Any], offsets: Sequence[int]) -> torch.Tensor:
        """Multiply rows offsets[e]:offsets[e + 1] of x by weights[e] (experts); returns [T, N]."""
        parts = [self.linear(x[a:b], w) for w, a, b in zip(weights, offsets, offsets[1:], strict=False)]
        return torch.cat(parts)

    def prepare_rows(self, weight: Packed, *, device: str) -> RowTable:
        """Copy a weight [N, K] to the device for `rows`, in the form it is stored in."""
        planes, form = weight.planes, weight.form
        if any(plane.shape[0] != weight.shape[0] for plane in planes.values()):
            planes, form = {"weight": dequantize(weight)}, "dense"
        placed = {name: plane.to(device, copy=True) for name, plane in planes.items()}
        return RowTable(form, weight.shape, placed, weight.group, weight.zero, weight.permutation)

    def rows(self, table: RowTable, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the rows at `ids` [T] as [T, K] (embedding lookup)."""
        picked = {name: plane.index_select(0, ids) for name, plane in table.planes.items()}
        return dequantize(table._replace(shape=(len(ids), *table.shape[1:]), planes=picked)).to(dtype)

    def nbytes(self, weight: Any) -> int:
        """Bytes a prepared weight takes on the device."""
        return weight.numel() * weight.element_size()


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

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if weight.is_mkldnn:
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return F.linear(x, weight, bias)


class DequantizedLinear(DenseLinear):
    """The default for every form without a kernel of its own."""

    packed = False


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """Kernels by (form, device type); built once and handed to the loader."""

    table: Mapping[tuple[str, str], LinearKernel]
    default: LinearKernel

    def lookup(self, form: str, device: str) -> LinearKernel:
        return self.table.get((form, device.split(":")[0]), self.default)


def default_kernels() -> LinearKernels:
    """All kernels of this package."""
    dense = DenseLinear()
    return LinearKernels({("dense", "cpu"): dense, ("dense", "cuda"): dense}, DequantizedLinear())
