"""Linear kernels: lookup, both storage orders, gathering rows, groups, narrow types."""

from __future__ import annotations

import pytest
import torch

from inferd.plugin.types import PackedWeight
from inferd_kernels.linear import DenseLinear, LinearKernels, default_kernels
from inferd_kernels.norms import norm_for
from inferd_kernels.reference.forms import dequantize

torch.set_num_threads(1)
GENERATOR = torch.Generator().manual_seed(5)


def dense(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> PackedWeight:
    values = torch.randn(rows, columns, generator=GENERATOR).to(dtype)
    return PackedWeight("dense", (rows, columns), {"weight": values})


def u4(rows: int, columns: int) -> PackedWeight:
    codes = torch.randint(0, 256, (rows, columns // 2), generator=GENERATOR, dtype=torch.uint8)
    scales, mins = (torch.randn(rows, columns // 32, generator=GENERATOR) for _ in range(2))
    return PackedWeight("u4_group", (rows, columns), {"codes": codes, "scales": scales, "mins": mins}, group=32)


@pytest.mark.parametrize(("rows", "columns"), [(96, 32), (64, 64), (32, 96), (7, 64), (129, 32)])
@pytest.mark.parametrize("tokens", [1, 2, 5, 33])
@pytest.mark.parametrize("form", ["dense", "u4_group"])
def test_linear_equals_plain_maths(rows: int, columns: int, tokens: int, form: str) -> None:
    weight = dense(rows, columns) if form == "dense" else u4(rows, columns)
    kernel = default_kernels().lookup(form, "cpu")
    prepared = kernel.prepare(weight, device="cpu", dtype=torch.float32)
    values = dequantize(weight).double()
    x = torch.randn(tokens, columns, generator=GENERATOR)
    bias = torch.randn(rows, generator=GENERATOR)
    torch.testing.assert_close(kernel.linear(x, prepared).double(), x.double() @ values.t(), rtol=1e-4, atol=1e-4)
    with_bias = kernel.linear(x, prepared, bias)
    torch.testing.assert_close(with_bias.double(), x.double() @ values.t() + bias, rtol=1e-4, atol=1e-4)
    assert kernel.nbytes(prepared) == rows * columns * 4


@pytest.mark.parametrize("form", ["dense", "u4_group"])
def test_rows_are_gathered_from_the_packed_form(form: str) -> None:
    weight = dense(96, 64) if form == "dense" else u4(96, 64)
    kernel = default_kernels().lookup(form, "cpu")
    table = kernel.prepare_rows(weight, device="cpu")
    assert table.nbytes == weight.nbytes
    want = dequantize(weight).clone()
    for plane in weight.planes.values():
        plane.zero_()
    ids = torch.tensor([3, 0, 95, 3], dtype=torch.int32)
    assert torch.equal(kernel.rows(table, ids, torch.float32), want[ids.long()])
    assert kernel.rows(table, ids, torch.bfloat16).dtype == torch.bfloat16


def test_rows_of_scales_that_span_rows() -> None:
    codes = torch.randn(8, 8, generator=GENERATOR).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 2, generator=GENERATOR)
    weight = PackedWeight("fp8", (8, 8), {"codes": codes, "scales": scales}, group=4)
    kernel = default_kernels().lookup("fp8", "cpu")
    ids = torch.tensor([7, 2])
    got = kernel.rows(kernel.prepare_rows(weight, device="cpu"), ids, torch.float32)
    assert torch.equal(got, dequantize(weight)[ids])


def test_without_onednn_the_same_numbers_come_from_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = dense(48, 64), torch.randn(3, 64, generator=GENERATOR)
    packed, plain = DenseLinear(), DenseLinear()
    monkeypatch.setattr(plain, "_onednn", False)
    outs = [k.linear(x, k.prepare(weight, device="cpu", dtype=torch.float32)) for k in (packed, plain)]
    assert not plain.prepare(weight, device="cpu", dtype=torch.float32).is_mkldnn
    torch.testing.assert_close(outs[0], outs[1])


def test_inputs_need_not_be_contiguous() -> None:
    weight = dense(48, 32)
    kernel = default_kernels().lookup("dense", "cpu")
    x = torch.randn(5, 64, generator=GENERATOR)[:, :32]
    got = kernel.linear(x, kernel.prepare(weight, device="cpu", dtype=torch.float32))
    torch.testing.assert_close(got, x @ weight.planes["weight"].t())


def test_groups_multiply_each_run_of_rows_by_its_own_weight() -> None:
    kernel = default_kernels().lookup("dense", "cpu")
    weights = [dense(8, 16) for _ in range(3)]
    prepared = [kernel.prepare(w, device="cpu", dtype=torch.float32) for w in weights]
    x = torch.randn(7, 16, generator=GENERATOR)
    got = kernel.grouped_linear(x, prepared, [0, 2, 2, 7])
    want = torch.cat((x[:2] @ weights[0].planes["weight"].t(), x[2:] @ weights[2].planes["weight"].t()))
    torch.testing.assert_close(got, want)


def test_prepare_copies_and_converts() -> None:
    weight = dense(4, 8, torch.bfloat16)
    kept = weight.planes["weight"].clone()
    prepared = DenseLinear().prepare(weight, device="cpu", dtype=torch.float32)
    weight.planes["weight"].zero_()
    assert torch.equal(prepared.to_dense() if prepared.is_mkldnn else prepared, kept.float())


def test_lookup_falls_back_to_dequantising_and_says_so() -> None:
    kernels = default_kernels()
    assert kernels.lookup("dense", "cuda:1").packed
    assert not kernels.lookup("u4_group", "cpu").packed
    own = DenseLinear()
    joined = LinearKernels({("u4_group", "cpu"): own}, kernels.default)
    assert joined.lookup("u4_group", "cpu") is own
    assert joined.lookup("u4_group", "cuda") is kernels.default


def test_norms_are_asked_for_by_input_format() -> None:
    assert default_kernels().default.input_format == "plain"
    x, weight = torch.randn(5, 24, generator=GENERATOR), torch.rand(24, generator=GENERATOR)
    got = norm_for("plain")(x, weight, 1e-3)
    want = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)
    assert norm_for("plain")(x.bfloat16(), weight, 1e-3).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="'fp8 rows'"):
        norm_for("fp8 rows")  # type: ignore[arg-type]
