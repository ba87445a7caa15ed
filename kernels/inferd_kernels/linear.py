"""Linear layers by (weight form, device): the place where packed kernels join.

A kernel that computes on a packed form registers for it; without one a weight is dequantised once,
at load, and torch multiplies.
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


class LinearKernel(ABC):
    """Multiply by weights of one form on one device."""

    input_format: InputFormat = "plain"
    packed: bool = True
    """Computes on the packed form; False: `prepare` made a dequantised copy."""

    @abstractmethod
    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> Any:
        """Move a weight [N, K] to the device in the order this kernel wants."""

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x [T, K] times the weight: [T, N]."""

    @abstractmethod
    def rows(self, weight: Any, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight's rows at `ids` [T] as [T, K] (embedding lookup)."""

    def grouped_linear(self, x: torch.Tensor, weights: Sequence[Any], offsets: Sequence[int]) -> torch.Tensor:
        """Multiply rows offsets[e]:offsets[e + 1] of x by weights[e] (experts); returns [T, N]."""
        parts = [self.linear(x[a:b], w) for w, a, b in zip(weights, offsets, offsets[1:], strict=False)]
        return torch.cat(parts)

    def nbytes(self, weight: Any) -> int:
        """Bytes a prepared weight takes on the device."""
        return sum(part.nbytes for part in weight if isinstance(part, torch.Tensor))


class DenseMatrix(NamedTuple):
    """A float weight, stored [K, N] when `transposed`, else [N, K]."""

    values: torch.Tensor
    transposed: bool


class DenseLinear(LinearKernel):
    """Float weights through torch.

    On the CPU wide matrices are kept transposed: BLAS then reads them at twice the speed for one or
    two rows (batch-1 decode) and loses little for more.
    """

    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> DenseMatrix:
        values = dequantize(weight) if weight.form != "dense" else weight.planes["weight"].reshape(weight.shape)
        rows, columns = weight.shape
        transposed = device.startswith("cpu") and 2 * rows >= 3 * columns
        order = values.t() if transposed else values
        placed = torch.empty(order.shape, device=device, dtype=dtype)
        return DenseMatrix(placed.copy_(order), transposed)  # a copy: `values` may be a mapped file

    def linear(self, x: torch.Tensor, weight: DenseMatrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        if not weight.transposed:
            return F.linear(x, weight.values, bias)
        return torch.mm(x, weight.values) if bias is None else torch.addmm(bias, x, weight.values)

    def rows(self, weight: DenseMatrix, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        values = weight.values.t() if weight.transposed else weight.values
        return values.index_select(0, ids).to(dtype)


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
