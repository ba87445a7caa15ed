"""Packed multiplication: exact against the dequantised weight and the same quantized rows, in every tier."""

from __future__ import annotations

import pytest
import torch

from inferd.plugin.types import PackedWeight
from inferd_kernels.cpu.library import Library
from inferd_kernels.cpu.linear import CpuBf16Linear, CpuDenseLinear, CpuPackedLinear
from inferd_kernels.cpu.program import Program
from inferd_kernels.cpu.rows import (
    OUTLIER_ABOVE,
    Int8Rows,
    norm_plain,
    norm_rows,
    quantize,
    silu_plain,
    silu_rows,
)
from inferd_kernels.cpu.structs import GROUP, GROUP_BYTES
from inferd_kernels.linear import DequantizedLinear, default_kernels
from inferd_kernels.norms import gate_for, norm_for
from inferd_kernels.reference.forms import dequantize

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
KERNEL = CpuPackedLinear()
ALL, NONE = 0.0, float("inf")
"""Of every group the largest value kept apart, or of none."""


def packed(
    form: str, n: int, k: int, group: int, dtype: torch.dtype, *, mins: bool = False, zero: int = 0
) -> PackedWeight:
    generator = torch.Generator().manual_seed(n * k + group)
    low, high, columns, kind = (0, 256, k // 2, torch.uint8) if form == "u4_group" else (-128, 128, k, torch.int8)
    planes = {
        "codes": torch.randint(low, high, (n, columns), dtype=kind, generator=generator),
        "scales": (torch.rand(n, k // group, generator=generator) / 16 + 0.01).to(dtype),
    }
    if mins:
        planes["mins"] = (torch.randn(n, k // group, generator=generator) / 10).to(dtype)
    return PackedWeight(form, (n, k), planes, group=group, zero=zero)  # type: ignore[arg-type]


WEIGHTS = {
    "Q4_1": packed("u4_group", 96, 64, 32, F16, mins=True),
    "Q4_0, ragged": packed("u4_group", 50, 96, 32, F16, zero=8),
    "Q4_K": packed("u4_group", 33, 256, 32, F32, mins=True),
    "4 bits by 16": packed("u4_group", 17, 48, 16, BF16, zero=3),
    "4 bits by 128": packed("u4_group", 40, 256, 128, F16, mins=True, zero=5),
    "Q8_0": packed("i8_group", 96, 64, 32, F16),
    "Q5_1": packed("i8_group", 50, 96, 32, F16, mins=True),
    "Q6_K": packed("i8_group", 33, 256, 16, F32),
    "8 bits by 16": packed("i8_group", 17, 48, 16, BF16, mins=True, zero=3),
    "8 bits by 64": packed("i8_group", 20, 128, 64, F32, zero=-5),
}
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 31, 33, 64, 70)


def rows(count: int, columns: int) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(columns))


def outliers(x: Int8Rows) -> torch.Tensor:
    """Return the values that are kept apart where they belong, [T, K to whole groups], zeros elsewhere, in float64."""
    kept = torch.zeros(x.shape[0], x.groups.shape[1] // GROUP_BYTES * GROUP, dtype=torch.float64)
    found = x.outliers.view(x.shape[0], -1, 8).contiguous()
    numbers, columns = found.view(F32)[..., 0], found.view(torch.int32)[..., 1]
    for row, count in enumerate(x.counts.tolist()):
        kept[row, columns[row, :count].long()] = numbers[row, :count].double()
        assert columns[row, :count].tolist() == sorted(set(columns[row, :count].tolist()))
    return kept


def codes_and_scales(x: Int8Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [T, G, 32] and scales [T, G, 1], in float64."""
    groups = x.groups.view(x.shape[0], -1, GROUP_BYTES)
    codes = groups[..., :GROUP].contiguous().view(torch.int8).double()
    return codes, groups[..., GROUP : GROUP + 4].contiguous().view(F32).double()


def values(x: Int8Rows) -> torch.Tensor:
    """Return what quantized rows stand for, in float64."""
    codes, scales = codes_and_scales(x)
    return ((codes * scales).flatten(1) + outliers(x))[:, : x.shape[1]]


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("above", [NONE, OUTLIER_ABOVE, ALL])
def test_equals_the_dequantised_weight(tier: str, name: str, above: float) -> None:
    weight = WEIGHTS[name]
    n, k = weight.shape
    x, bias, residual = rows(13, k), torch.randn(n), torch.randn(13, n)
    x[:, 5 :: GROUP + 1] *= 8
    quantized = quantize(x, outlier_above=above)
    got = KERNEL.linear(quantized, KERNEL.prepare(weight, device="cpu", dtype=F32), bias, residual=residual).double()
    exact = dequantize(weight).double().T
    assert worst(got, values(quantized) @ exact + bias + residual) < 2e-6
    assert worst(got, x.double() @ exact + bias + residual) < (3e-2 if above == NONE else 2e-2)


@pytest.mark.parametrize("name", ["Q4_1", "Q4_0, ragged", "Q6_K"])
def test_a_row_has_the_same_bits_in_any_step(tier: str, name: str, library: Library) -> None:
    weight = WEIGHTS[name]
    prepared = KERNEL.prepare(weight, device="cpu", dtype=F32)
    x = rows(70, weight.shape[1])
    x[::7, :32] *= 10  # rows with outliers beside rows without
    whole = KERNEL.linear(x, prepared)
    for threads in (1, 2):
        library.set_threads(threads)
        for count in ROWS if threads == 2 else range(1, 70):
            assert torch.equal(KERNEL.linear(x[70 - count :], prepared), whole[70 - count :]), (threads, count)


def test_groups_that_weigh_most_keep_their_largest_value(tier: str) -> None:
    """Those whose squared scale is above so many means of their row; each row judges alone."""
    x = rows(9, 2240)
    x[0, 64:96] *= 50
    x[3, 2208:] *= 30
    x[4] = 0
    x[5, 70] = -400
    some, none, full = (quantize(x, outlier_above=above) for above in (OUTLIER_ABOVE, NONE, ALL))
    codes, scales = codes_and_scales(none)
    squares = scales.squeeze(-1) ** 2
    want = squares > OUTLIER_ABOVE * squares.mean(1, keepdim=True)
    assert not outliers(none).any()
    assert some.counts.tolist() == want.sum(1).tolist()
    assert some.counts[[0, 3, 4, 5]].tolist() == [1, 1, 0, 1]
    assert outliers(some)[5].nonzero().tolist() == [[70]]
    largest = torch.where(want, x.view(9, 70, GROUP).abs().amax(-1), 0)
    assert torch.equal(outliers(some).view(9, 70, GROUP).abs().amax(-1).float(), largest)
    for got, other in zip(codes_and_scales(some), codes_and_scales(full), strict=True):
        assert torch.equal(got[want], other[want])
    assert torch.equal(codes_and_scales(some)[0][~want], codes[~want])
    assert torch.equal(codes_and_scales(some)[1][~want], scales[~want])
    assert (
        codes_and_scales(some)[1][5, 2] / scales[5, 2]
    ).item() < 0.02  # the rest of the group has a scale of its own


def test_embedding_rows_are_bit_for_bit_those_of_the_form(tier: str) -> None:
    for weight in WEIGHTS.values():
        ids = torch.tensor([0, 5, weight.shape[0] - 1, 5], dtype=torch.int32)
        got = KERNEL.rows(KERNEL.prepare_rows(weight, device="cpu"), ids, F32)
        assert torch.equal(got, dequantize(weight)[ids.long()])


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_dense_weights_multiply_without_rounding(tier: str, dtype: torch.dtype) -> None:
    kernel = CpuDenseLinear()
    values = torch.randn(77, 50).to(dtype)
    prepared = kernel.prepare(PackedWeight("dense", (77, 50), {"weight": values}), device="cpu", dtype=F32)
    x = rows(33, 50)
    whole = kernel.linear(x, prepared)
    torch.testing.assert_close(whole.double(), x.double() @ values.double().T, rtol=1e-5, atol=2e-5)
    for count in (1, 2, 3, 7, 8):
        assert torch.equal(kernel.linear(x[:count], prepared), whole[:count])
    assert torch.equal(kernel.rows(prepared, torch.tensor([5, 76]), F32, 2.0), 2 * values[[5, 76]].float())


def bf16_weight(n: int, k: int) -> PackedWeight:
    values = torch.randn(n, k, generator=torch.Generator().manual_seed(n)).bfloat16()
    return PackedWeight("dense", (n, k), {"weight": values})


@pytest.mark.parametrize(("n", "k"), [(77, 50), (16, 1), (130, 576), (3, 129)])
def test_bf16_rounds_rows_and_nothing_else(tier: str, n: int, k: int) -> None:
    """Products of rounded rows are exact in float32, whatever the tier; sums err as sums of so many terms do."""
    kernel, weight = CpuBf16Linear(), bf16_weight(n, k)
    prepared = kernel.prepare(weight, device="cpu", dtype=F32)
    exact, x = weight.planes["weight"].double().T, rows(13, k)
    bias, residual = torch.randn(n), torch.randn(13, n)
    got = kernel.linear(x, prepared, bias, residual=residual).double()
    assert worst(got, x.bfloat16().double() @ exact + bias + residual) < 2e-6
    assert worst(got, x.double() @ exact + bias + residual) < 1e-2
    ids = torch.tensor([n - 1, 0, n // 2], dtype=torch.int32)
    assert torch.equal(kernel.rows(prepared, ids, F32), weight.planes["weight"][ids.long()].float())


def test_bf16_rows_have_the_same_bits_in_any_step(tier: str, library: Library) -> None:
    kernel = CpuBf16Linear()
    prepared = kernel.prepare(bf16_weight(130, 97), device="cpu", dtype=F32)
    x = rows(70, 97)
    whole = kernel.linear(x, prepared)
    for threads in (1, 2):
        library.set_threads(threads)
        for count in range(1, 70):
            assert torch.equal(kernel.linear(x[70 - count :], prepared), whole[70 - count :]), (threads, count)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_recorded_step_rounds_as_norm_and_gate_do(tier: str, count: int) -> None:
    """In a step of one or two rows the multiplication makes the rows itself."""
    kernel = CpuBf16Linear()
    prepared = kernel.prepare(bf16_weight(33, 90), device="cpu", dtype=F32)
    x, weight, gate_up = rows(count, 90), torch.rand(90), rows(count, 180)
    makers = (
        lambda: norm_for("bf16 rows")(x, weight, 1e-5),
        lambda: gate_for("silu", "bf16 rows")(gate_up),
        lambda: x,
    )
    plain = (norm_for("native rows")(x, weight, 1e-5), gate_for("silu", "native rows")(gate_up), x)
    program = Program()
    with program.record():
        recorded = [kernel.linear(make(), prepared) for make in makers]
    program.run(tokens=count, sequences=count, sampled=count)
    for got, make, floats in zip(recorded, makers, plain, strict=True):
        assert torch.equal(got, kernel.linear(make(), prepared))
        assert torch.equal(got, kernel.linear(floats, prepared))


def test_output_may_be_columns_of_a_wider_one(tier: str) -> None:
    weight = WEIGHTS["Q4_0, ragged"]
    x, prepared = rows(5, 96), KERNEL.prepare(weight, device="cpu", dtype=F32)
    out = torch.full((5, 80), 7.0)
    KERNEL.linear(x, prepared, out=out[:, 20:70])
    assert torch.equal(out[:, 20:70], KERNEL.linear(x, prepared))
    assert bool((out[:, :20] == 7).all())
    assert bool((out[:, 70:] == 7).all())


def test_bad_numbers_stay_bad(tier: str) -> None:
    weight = WEIGHTS["Q4_1"]
    x = rows(3, 64)
    x[0, 3], x[1, 40] = float("nan"), float("inf")
    got = KERNEL.linear(x, KERNEL.prepare(weight, device="cpu", dtype=F32))
    assert torch.isnan(got).all(dim=1).tolist() == [True, True, False]
    kernel = CpuBf16Linear()
    got = kernel.linear(x, kernel.prepare(bf16_weight(96, 64), device="cpu", dtype=F32))
    assert (~torch.isfinite(got)).all(dim=1).tolist() == [True, True, False]


def test_norm_and_gate_equal_torch(tier: str) -> None:
    x, weight, gate_up = rows(5, 100), torch.rand(100), rows(5, 200) * 30
    want = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert worst(norm_plain(x, weight, 1e-5).double(), want) < 1e-6
    want = torch.nn.functional.silu(gate_up[:, :100].double()) * gate_up[:, 100:]
    assert worst(silu_plain(gate_up).double(), want) < 1e-6
    assert worst(values(silu_rows(gate_up)), want) < 1e-2
    assert worst(values(norm_rows(x, weight, 1e-5)), norm_plain(x, weight, 1e-5).double()) < 1e-2


def test_norm_and_gate_write_what_a_kernel_makes_of_plain_rows(tier: str) -> None:
    """The fusion contract: the same bits, whoever quantizes."""
    prepared = KERNEL.prepare(WEIGHTS["Q4_1"], device="cpu", dtype=F32)
    x, weight, gate_up = rows(5, 64), torch.rand(64), rows(5, 128)
    x[1, 7] = gate_up[2, 9] = 40
    normed = KERNEL.linear(norm_for(KERNEL.input_format)(x, weight, 1e-5), prepared)
    assert torch.equal(normed, KERNEL.linear(norm_for("native rows")(x, weight, 1e-5), prepared))
    gated = KERNEL.linear(gate_for("silu", KERNEL.input_format)(gate_up), prepared)
    assert torch.equal(gated, KERNEL.linear(gate_for("silu", "native rows")(gate_up), prepared))


def test_what_no_native_kernel_takes_falls_back(library: Library) -> None:
    kernels = default_kernels("native")
    ordered = PackedWeight("u4_group", (4, 64), WEIGHTS["Q4_1"].planes, group=32, permutation=torch.arange(64))
    assert isinstance(kernels.choose(WEIGHTS["Q4_1"], "cpu", F32), CpuPackedLinear)
    assert isinstance(kernels.choose(ordered, "cpu", F32), DequantizedLinear)
    assert isinstance(kernels.choose(WEIGHTS["Q4_1"], "cpu", BF16), DequantizedLinear)
    assert isinstance(kernels.choose(WEIGHTS["Q4_1"], "cuda", F32), DequantizedLinear)
    assert isinstance(kernels.choose(bf16_weight(4, 6), "cpu", F32), CpuBf16Linear) == library.multiplies_bf16
    exact = PackedWeight("dense", (4, 6), {"weight": torch.randn(4, 6).half()})
    assert type(kernels.choose(exact, "cpu", F32)) is CpuDenseLinear
    assert isinstance(default_kernels("torch").choose(WEIGHTS["Q4_1"], "cpu", F32), DequantizedLinear)
