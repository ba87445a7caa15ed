"""Norms and gates by what the linear layer after them reads: the whole of the fusion contract.

A linear kernel declares its input format; the model asks for the norm, and for the gated activation, that
writes it, once, at load.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from inferd_kernels.reference.norm import rms_norm

if TYPE_CHECKING:
    from inferd_kernels.linear import InputFormat
    from inferd_kernels.triton.norm import QuantizedRows

Norm = Callable[[torch.Tensor, torch.Tensor, float], Any]
Gate = Callable[[torch.Tensor], Any]
"""From [T, 2 K], gate beside up, to K columns in the input format of the layer after it."""

DEVICE_CODES = {"device int8 rows": torch.int8, "device fp8 rows": torch.float8_e4m3fn}
"""What Triton norms and gates quantize rows to, one scale a row."""

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def norm_for(input_format: InputFormat) -> Norm:
    """Return the RMSNorm that writes `input_format`. Raises ValueError where none does."""
    if input_format == "plain":
        return rms_norm
    if input_format == "device rows":
        from inferd_kernels.triton.norm import rms_norm_rows

        return rms_norm_rows
    if input_format in DEVICE_CODES:
        return partial(_norm_quantized, dtype=DEVICE_CODES[input_format])
    from inferd_kernels.cpu import rows

    if input_format == "native rows":
        return rows.norm_plain
    if input_format == "bf16 rows":
        return rows.norm_bf16
    if input_format == "int8 rows":
        return rows.norm_rows
    raise ValueError(f"no norm writes {input_format!r}")


def gate_for(activation: str, input_format: InputFormat) -> Gate:
    """Return activation(gate) * up in `input_format`; another than silu is always computed by torch."""
    if input_format == "device rows":
        from inferd_kernels.triton.gate import gate_rows

        return partial(gate_rows, activation=activation)
    if input_format in DEVICE_CODES:
        from inferd_kernels.triton.gate import gate_quantized

        return partial(gate_quantized, activation=activation, dtype=DEVICE_CODES[input_format])
    if input_format == "plain" or activation != "silu":
        return _torch_gate(ACTIVATIONS[activation])
    from inferd_kernels.cpu import rows

    if input_format == "native rows":
        return rows.silu_plain
    if input_format == "bf16 rows":
        return rows.silu_bf16
    return rows.silu_rows


def records_gate(activation: str, input_format: InputFormat) -> bool:
    """Say whether `gate_for` of these can be recorded."""
    return input_format in ("device rows", *DEVICE_CODES) or (activation == "silu" and input_format != "plain")


def _norm_quantized(x: torch.Tensor, weight: torch.Tensor, eps: float, *, dtype: torch.dtype) -> QuantizedRows:
    from inferd_kernels.triton.norm import rms_norm_quantized

    return rms_norm_quantized(x, weight, eps, dtype)[0]


def _torch_gate(activation: Callable[[torch.Tensor], torch.Tensor]) -> Gate:
    def gate(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate).mul_(up)

    return gate
