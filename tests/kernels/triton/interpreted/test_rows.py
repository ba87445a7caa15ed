"""Norms, gates, embedding rows and accepted drafts."""

from __future__ import annotations

import pytest
import torch

from inferd_kernels.triton.accept import accept, accept_reference
from inferd_kernels.triton.embedding import embedding_reference, embedding_rows, packed_reference
from inferd_kernels.triton.gate import gate_quantized, gate_reference, gate_rows, quantize_rows
from inferd_kernels.triton.gemm_w8 import pack_w8
from inferd_kernels.triton.norm import (
    QuantizedRows,
    add_rms_norm,
    quantize_rows_reference,
    rms_norm_quantized,
    rms_norm_reference,
    rms_norm_rows,
)
from tests.kernels.triton.interpreted.memory import among_nan
from tests.kernels.triton.interpreted.test_gemm import guarded, weight8

DTYPES = [torch.float32, torch.float16]
EIGHT_BIT = [torch.int8, torch.float8_e4m3fn]


def rows(shape: tuple[int, int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return rows in memory that is NaN but for them."""
    return among_nan(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype), 7)


def bound(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 4e-3


def check_codes(got: QuantizedRows, want: QuantizedRows) -> None:
    """Codes may differ by one step where a value lies between two (fp8: the interpreter's rounding)."""
    step = 1.0 if want.codes.dtype == torch.int8 else 64.0
    assert float((got.codes.float() - want.codes.float()).abs().max()) <= step
    torch.testing.assert_close(got.scales, want.scales, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [48, 65, 576])
def test_norms(dtype: torch.dtype, columns: int) -> None:
    x, residual = rows((4, columns), dtype), rows((4, columns), dtype, 1)
    weight = among_nan(torch.rand(1, columns) + 0.5)[0]
    torch.testing.assert_close(
        rms_norm_rows(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)[0], rtol=bound(dtype), atol=bound(dtype)
    )
    got, want = add_rms_norm(x, residual, weight, 1e-5), rms_norm_reference(x, weight, 1e-5, residual)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=bound(dtype), atol=bound(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", EIGHT_BIT)
@pytest.mark.parametrize("with_residual", [False, True])
def test_quantized_norms(dtype: torch.dtype, kind: torch.dtype, with_residual: bool) -> None:
    x, weight = rows((3, 70), dtype), torch.rand(70) + 0.5
    residual = rows((3, 70), dtype, 1) if with_residual else None
    got, total = rms_norm_quantized(x, weight, 1e-5, kind, residual)
    normed, want_total = rms_norm_reference(x, weight, 1e-5, residual)
    check_codes(got, quantize_rows_reference(normed, kind))
    torch.testing.assert_close(total, want_total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gates(dtype: torch.dtype, activation: str) -> None:
    x = rows((3, 2 * 1100), dtype)
    want = gate_reference(x, activation)
    torch.testing.assert_close(gate_rows(x, activation), want, rtol=bound(dtype), atol=bound(dtype))
    for kind in EIGHT_BIT:
        check_codes(gate_quantized(x, activation, kind), quantize_rows_reference(want, kind))


@pytest.mark.parametrize("kind", EIGHT_BIT)
def test_rows_of_zeros_quantize_to_zeros(kind: torch.dtype) -> None:
    x = rows((3, 33), torch.float32)
    x[1] = 0.0
    got = quantize_rows(x, kind)
    check_codes(got, quantize_rows_reference(x, kind))
    assert not got.codes[1].float().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_rows(dtype: torch.dtype) -> None:
    table, ids = rows((50, 1030), dtype), torch.tensor([49, 0, 7, 7], dtype=torch.int32)
    for scale in (1.0, 1.7):
        table[1:7] = float("nan")  # rows that nobody asks for
        got = embedding_rows(table, ids, dtype, scale)
        torch.testing.assert_close(got, embedding_reference(table, ids, dtype, scale))


@pytest.mark.parametrize("form", ["i8_group", "i8_channel", "fp8"])
def test_embedding_rows_of_packed_tables(form: str) -> None:
    group = 32 if form == "i8_group" else 0
    weight, ids = weight8(form, 50, 96, group, mins=group > 0, zero=group // 16), torch.tensor([49, 0, 7, 7]).int()
    got = embedding_rows(guarded(pack_w8(weight, "cpu")), ids, torch.float32, 1.7)
    torch.testing.assert_close(got, packed_reference(weight, ids, torch.float32, 1.7))


def test_accepted_drafts() -> None:
    generator = torch.Generator().manual_seed(2)
    lens = torch.randint(1, 6, (40,), generator=generator)
    offsets = torch.tensor([0, *lens.cumsum(0).tolist()], dtype=torch.int32)
    sampled = torch.randint(0, 2, (int(offsets[-1]),), generator=generator)
    wrong = torch.rand(int(offsets[-1]), generator=generator) < 0.2
    drafts = torch.where(wrong, 1 - sampled, sampled)
    got, want = accept(sampled, drafts, offsets, 4), accept_reference(sampled, drafts, offsets)
    assert torch.equal(got, want)
    assert set(want.tolist()) >= {0, 1, 2, 3}
