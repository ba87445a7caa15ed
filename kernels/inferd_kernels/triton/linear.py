"""Linear layers on a GPU: float weights through cuBLAS, packed ones through the kernels of this package.

All of them read rows that Triton norms and gates wrote (`device rows`), and can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from inferd_kernels.linear import DenseLinear, InputFormat, LinearKernel, LinearKernels
from inferd_kernels.reference.forms import Packed, dequantize
from inferd_kernels.triton.embedding import embedding_rows
from inferd_kernels.triton.gate import quantize_rows
from inferd_kernels.triton.gemm_fp8 import gemm_fp8
from inferd_kernels.triton.gemm_w4 import Weight4, gemm_w4, half_of, pack_w4
from inferd_kernels.triton.gemm_w8 import Weight8, block_of, gemm_w8, group_of, pack_w8
from inferd_kernels.triton.norm import QuantizedRows
from inferd_kernels.triton.split_k import Epilogue

FP8_CAPABILITY = (8, 9)


class DeviceRows:
    """What the kernels here share: the format of their input, and embedding rows from a float table."""

    input_format: InputFormat = "device rows"
    capture_safe = True

    def prepare_rows(self, weight: Packed, *, device: str, dtype: torch.dtype = torch.float32) -> Any:
        """Return the table [V, K]; packed ones become `dtype`, since rows of them are gathered, not multiplied."""
        if weight.form == "dense":
            return weight.planes["weight"].view(weight.shape).to(device, copy=True)
        return dequantize(weight).to(device=device, dtype=dtype)

    def rows(self, table: Any, ids: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        return embedding_rows(table, ids, dtype, scale)


class GpuDenseLinear(DeviceRows, DenseLinear):
    """Float weights; the residual is added by the product itself."""

    def __init__(self) -> None:
        self._onednn = False  # in the interpreter the device is a CPU

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if residual is not None and bias is None:
            y = torch.addmm(residual, x, weight.t())
        else:
            y = F.linear(x, weight, bias)
            y = y if residual is None else y.add_(residual)
        return y if out is None else out.copy_(y)


class GpuDequantizedLinear(GpuDenseLinear):
    """The default for every form, or shape, without a kernel of its own."""

    packed = False


class GpuPacked4(DeviceRows, LinearKernel):
    """4-bit groups of at least 32 columns."""

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        whole = len(weight.shape) == 2 and weight.permutation is None
        return whole and half_of(weight.shape[1], weight.group) > 0

    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> Weight4:
        return pack_w4(weight, device)

    def linear(
        self,
        x: torch.Tensor,
        weight: Weight4,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return gemm_w4(x, weight, Epilogue(bias, residual), out=out)

    def nbytes(self, weight: Weight4) -> int:
        return weight.nbytes


class GpuPacked8(DeviceRows, LinearKernel):
    """int8 with a scale a group or a row, and fp8 where the device has it; rows stay floats."""

    rows_of_weight = True

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        if len(weight.shape) != 2 or weight.permutation is not None:
            return False
        if weight.form == "fp8" and torch.cuda.is_available() and torch.cuda.get_device_capability() < FP8_CAPABILITY:
            return False
        return block_of(weight.shape[1], group_of(weight)) > 0

    def prepare(self, weight: Packed, *, device: str, dtype: torch.dtype) -> Weight8:
        return pack_w8(weight, device)

    def prepare_rows(self, weight: Packed, *, device: str, dtype: torch.dtype = torch.float32) -> Weight8:
        return pack_w8(weight, device)

    def linear(
        self,
        x: torch.Tensor,
        weight: Weight8,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        kernel = "gemm_w8" if weight.codes.dtype == torch.int8 else "gemm_fp8"
        return gemm_w8(x, weight, Epilogue(bias, residual), out=out, kernel=kernel)

    def nbytes(self, weight: Weight8) -> int:
        return weight.nbytes


class GpuRounded8(GpuPacked8):
    """8-bit weights times rows quantized to their type: what the 8-bit matrix units multiply.

    The norm or gate before quantizes, so that rows are read once and as bytes.
    """

    def __init__(self, codes: torch.dtype) -> None:
        self._codes = codes
        self.rounds_rows = "int8" if codes == torch.int8 else "fp8"
        self.input_format = "device int8 rows" if codes == torch.int8 else "device fp8 rows"

    def accepts(self, weight: Packed, dtype: torch.dtype) -> bool:
        offset = weight.zero or weight.planes.get("mins") is not None
        return not offset and weight.planes["codes"].dtype == self._codes and super().accepts(weight, dtype)

    def linear(
        self,
        x: torch.Tensor | QuantizedRows,
        weight: Weight8,
        bias: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = x if isinstance(x, QuantizedRows) else quantize_rows(x, self._codes)
        multiply = gemm_w8 if self._codes == torch.int8 else gemm_fp8
        return multiply(rows, weight, Epilogue(bias, residual), out=out)


def gpu_kernels(device: str = "cuda") -> LinearKernels:
    """Return the kernels of a device type (`cpu`: in the interpreter).

    Forms with a scale a row are made for the 8-bit matrix units, and their rows are rounded as well; a scale a group
    is there for accuracy, so rows stay as they are.
    """
    four, eight = GpuPacked4(), GpuPacked8()
    table: dict[tuple[str, str], Any] = {("dense", device): [GpuDenseLinear()], ("u4_group", device): [four]}
    table |= {
        ("i8_group", device): [eight],
        ("i8_channel", device): [GpuRounded8(torch.int8), eight],
        ("fp8", device): [GpuRounded8(torch.float8_e4m3fn), eight],
    }
    return LinearKernels(table, GpuDequantizedLinear(), triton=True)
