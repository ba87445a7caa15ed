"""The gated activation between the matrices of a feed-forward block, and the quantization of rows.

    y = act(gate) * up;   silu(x) = x / (1 + e^-x);   gelu by erf, or its tanh approximation (Hendrycks and Gimpel 2016)

Quantized output: see `inferd_kernels.triton.norm`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from inferd_kernels.triton.kv_write import LARGEST
from inferd_kernels.triton.norm import QuantizedRows, write_rows

ACTIVATIONS = {"none": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}


def gate_reference(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return act(gate) * up of rows [T, 2 K], computed in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    acts = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    return (acts[activation](gate) * up).to(gate_up.dtype)


@triton.jit
def gate_kernel(
    p_x,
    p_out,
    p_scale,
    x_stride,
    out_stride,
    num_columns,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Without quantization a row may be cut into several programs."""
    i_row = tl.program_id(0).to(tl.int64)
    o_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = o_k < num_columns
    b_y = tl.load(p_x + i_row * x_stride + o_k, mask=mask_k, other=0.0).to(tl.float32)
    if ACTIVATION > 0:
        b_up = tl.load(p_x + i_row * x_stride + num_columns + o_k, mask=mask_k, other=0.0).to(tl.float32)
        if ACTIVATION == 1:
            b_y = b_y / (1.0 + tl.exp(-b_y))
        elif ACTIVATION == 2:
            b_y = 0.5 * b_y * (1.0 + tl.erf(b_y * 0.7071067811865476))
        else:
            b_inner = 0.7978845608028654 * (b_y + 0.044715 * b_y * b_y * b_y)
            b_y = b_y / (1.0 + tl.exp(-2.0 * b_inner))
        b_y *= b_up
    if LARGEST > 0:
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
    write_rows(p_out, p_scale, i_row, o_k, mask_k, b_y, out_stride, LARGEST, ROUND)


def gate_rows(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return act(gate) * up [T, K] of rows [T, 2 K], gate before up."""
    out, _ = _launch(gate_up, gate_up.shape[1] // 2, activation, None)
    return out


def gate_quantized(gate_up: torch.Tensor, activation: str, dtype: torch.dtype) -> QuantizedRows:
    """Return act(gate) * up as codes of an 8-bit dtype."""
    out, scales = _launch(gate_up, gate_up.shape[1] // 2, activation, dtype)
    assert scales is not None
    return QuantizedRows(out, scales, gate_up.dtype)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> QuantizedRows:
    """Return rows x [T, K] as codes of an 8-bit dtype."""
    out, scales = _launch(x, x.shape[1], "none", dtype)
    assert scales is not None
    return QuantizedRows(out, scales, x.dtype)


def _launch(
    x: torch.Tensor, columns: int, activation: str, dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    num_rows = x.shape[0]
    out = torch.empty((num_rows, columns), dtype=dtype or x.dtype, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device) if dtype else None
    if num_rows:
        whole = triton.next_power_of_2(columns)
        block = whole if dtype else min(1024, whole)
        gate_kernel[(num_rows, triton.cdiv(columns, block))](
            x,
            out,
            scales,
            x.stride(0),
            out.stride(0),
            columns,
            BLOCK_K=block,
            ACTIVATION=ACTIVATIONS[activation],
            LARGEST=LARGEST[dtype] if dtype else 0.0,
            ROUND=dtype == torch.int8,
            num_warps=min(16, max(1, block // 256)),
        )
    return out, scales
