"""Products with packed weights: 4 and 8 bits, groups, zero points, split K, quantized rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferd.plugin.types import PackedWeight
from inferd_kernels.triton.gate import quantize_rows
from inferd_kernels.triton.gemm_fp8 import gemm_fp8
from inferd_kernels.triton.gemm_w4 import Weight4, gemm_w4, gemm_w4_reference, half_of, pack_w4
from inferd_kernels.triton.gemm_w8 import Weight8, gemm_w8, gemm_w8_reference, pack_w8
from inferd_kernels.triton.split_k import Epilogue, case_of
from inferd_kernels.triton.tiling import Tiles
from tests.kernels.triton.interpreted.memory import among_nan, untouched

F32, F16 = torch.float32, torch.float16
SHAPES = [(40, 128, 32), (33, 256, 64), (70, 192, 32), (16, 128, 128)]
"""N, K, group; N is no multiple of the tile."""
TAILS = [(40, 96, 32), (33, 160, 32), (70, 32, 32), (20, 80, 16), (40, 64, 16)]
"""Of 4-bit weights whose columns do not fill whole blocks, and of groups of 16."""
LARGE = {"BLOCK_M": 128, "BLOCK_N": 32, "PROGRAMS": 0, "num_warps": 4, "num_stages": 1}
"""What many rows take on a device, whatever their type."""
SPLIT = {"BLOCK_M": 16, "BLOCK_N": 32, "PROGRAMS": 4, "num_warps": 4, "num_stages": 1}


def weight4(n: int, k: int, group: int, *, mins: bool, seed: int = 0) -> PackedWeight:
    generator = torch.Generator().manual_seed(n + seed)
    planes = {
        "codes": torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator),
        "scales": (torch.rand(n, k // group, generator=generator) * 0.1).half(),
    }
    if mins:
        planes["mins"] = torch.randn(n, k // group, generator=generator) * 0.1
    return PackedWeight("u4_group", (n, k), planes, group, zero=0 if mins else 8)


def weight8(form: str, n: int, k: int, group: int, *, mins: bool = False, zero: int = 0) -> PackedWeight:
    generator = torch.Generator().manual_seed(n)
    codes = torch.randint(-127, 128, (n, k), generator=generator).to(torch.int8)
    if form == "fp8":
        codes = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
    rows = -(-n // group) if form == "fp8" and group else n
    scales = torch.rand(rows, k // group, generator=generator) if group else torch.rand(n, generator=generator)
    planes = {"codes": codes, "scales": scales * 0.02}
    if mins:
        planes["mins"] = torch.randn(n, k // group, generator=generator) * 0.1
    return PackedWeight(form, (n, k), planes, group, zero)  # type: ignore[arg-type]


def inputs(m: int, n: int, k: int, dtype: torch.dtype, *, added: bool) -> tuple[torch.Tensor, Epilogue]:
    """Return rows and what is added to the product, each in memory that is NaN but for them."""
    generator = torch.Generator().manual_seed(m)
    x = among_nan(torch.randn(m, k, generator=generator).to(dtype), 8)
    if not added:
        return x, Epilogue()
    bias, residual = torch.randn(1, n, generator=generator), torch.randn(m, n, generator=generator)
    return x, Epilogue(among_nan(bias.to(dtype))[0], among_nan(residual.to(dtype), 3))


def guarded(weight: Weight4 | Weight8) -> Any:
    """Return the same weight with scales and mins in memory that is NaN before and after them."""
    mins = None if weight.mins is None else among_nan(weight.mins)
    return weight._replace(scales=among_nan(weight.scales), mins=mins)


def packed4(n: int, k: int, group: int, *, mins: bool) -> tuple[PackedWeight, Weight4]:
    weight = weight4(n, k, group, mins=mins)
    return weight, guarded(pack_w4(weight, "cpu"))


def close(got: torch.Tensor, want: torch.Tensor, bound: float) -> None:
    assert got.shape == want.shape
    error = float((got.float() - want.float()).abs().max())
    assert error <= bound * float(want.abs().max()), f"{error} of {float(want.abs().max())}"


def bound(dtype: torch.dtype) -> float:
    return 2e-6 if dtype == F32 else 2e-3


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("m", [1, 5, 17, 70])
@pytest.mark.parametrize("mins", [False, True])
def test_four_bits(dtype: torch.dtype, m: int, mins: bool) -> None:
    for n, k, group in SHAPES:
        weight, packed = packed4(n, k, group, mins=mins)
        x, added = inputs(m, n, k, dtype, added=mins)
        close(gemm_w4(x, packed, added), gemm_w4_reference(x, weight, added), bound(dtype))


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("mins", [False, True])
@pytest.mark.parametrize("tiles", [None, LARGE, SPLIT], ids=["table", "large", "split"])
def test_four_bits_of_columns_that_fill_no_block(dtype: torch.dtype, mins: bool, tiles: Tiles | None) -> None:
    """Columns past the last are not read, nor their scales."""
    for n, k, group in TAILS:
        weight, packed = packed4(n, k, group, mins=mins)
        x, added = inputs(5, n, k, dtype, added=mins)
        close(gemm_w4(x, packed, added, tiles=tiles), gemm_w4_reference(x, weight, added), bound(dtype))


@pytest.mark.parametrize("tiles", [LARGE, SPLIT], ids=["large", "split"])
@pytest.mark.parametrize("mins", [False, True])
def test_tiles_of_many_rows_and_split_columns(tiles: Tiles, mins: bool) -> None:
    """In float32, whose table has neither; the output is written where it belongs and nowhere else."""
    n, k, m = 40, 512, 19
    four, packed = packed4(n, k, 32, mins=mins)
    eight = weight8("i8_group", n, k, 64, mins=mins, zero=3 * mins)
    channel = weight8("i8_channel", n, k, 0)
    x, added = inputs(m, n, k, F32, added=True)
    products: list[tuple[Any, ...]] = [
        (four, gemm_w4, packed, gemm_w4_reference),
        (eight, gemm_w8, guarded(pack_w8(eight, "cpu")), gemm_w8_reference),
        (channel, gemm_w8, guarded(pack_w8(channel, "cpu")), gemm_w8_reference),
    ]
    for weight, multiply, ready, reference in products:
        out = among_nan(torch.full((m, n), float("nan")), 5)
        multiply(x, ready, added, out=out, tiles=tiles)
        close(out, reference(x, weight, added), 1e-5)
        assert untouched(out)


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("m", [1, 5, 17, 70])
@pytest.mark.parametrize(
    ("form", "grouped", "mins", "zero"),
    [("i8_group", True, False, 0), ("i8_group", True, True, 3), ("i8_channel", False, False, 0)],
)
def test_eight_bits(dtype: torch.dtype, m: int, form: str, grouped: bool, mins: bool, zero: int) -> None:
    for n, k, group in SHAPES[1:3]:
        weight = weight8(form, n, k, group if grouped else 0, mins=mins, zero=zero)
        x, added = inputs(m, n, k, dtype, added=not mins)
        close(gemm_w8(x, guarded(pack_w8(weight, "cpu")), added), gemm_w8_reference(x, weight, added), bound(dtype))


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize(("m", "limit"), [(3, 2e-3), (70, 0.06)])
def test_fp8_weights(group: int, m: int, limit: float) -> None:
    """Few rows are exact but for rounding the result; many are rounded to fp8 themselves."""
    n, k = 40, 128
    weight = weight8("fp8", n, k, group)
    x, added = inputs(m, n, k, F16, added=True)
    close(gemm_fp8(x, pack_w8(weight, "cpu"), added), gemm_w8_reference(x, weight, added), limit)


@pytest.mark.parametrize(("form", "group"), [("i8_channel", 0), ("i8_group", 32), ("fp8", 0), ("fp8", 32)])
@pytest.mark.parametrize("m", [1, 20])
def test_quantized_rows(form: str, group: int, m: int) -> None:
    """Against the product of the very codes and scales."""
    n, k = 40, 192
    weight = weight8(form, n, k, group)
    x, added = inputs(m, n, k, F32, added=True)
    rows = quantize_rows(x, weight.planes["codes"].dtype)
    got = gemm_w8(rows, pack_w8(weight, "cpu"), added, dtype=F32)
    close(got, gemm_w8_reference(rows, weight, added), 1e-5)


def test_split_parts_do_not_depend_on_other_rows() -> None:
    weight = pack_w4(weight4(40, 512, 32, mins=False), "cpu")
    x, _ = inputs(9, 40, 512, F32, added=False)
    whole = gemm_w4(x, weight, tiles=SPLIT)
    assert torch.equal(gemm_w4(x[4:5], weight, tiles=SPLIT)[0], whole[4])


def test_shapes_that_do_not_fit_are_named() -> None:
    assert half_of(576, 32) == 32
    assert half_of(4096, 128) == 64
    assert half_of(96, 32) == 32
    assert half_of(128, 16) == 16
    assert half_of(128, 24) == 0


def test_rows_choose_their_tiles_by_number_and_type() -> None:
    assert [case_of(torch.empty(m, 1, dtype=F16)) for m in (1, 16, 17, 64, 65)] == ["m16", "m16", "m32", "m64", "large"]
    assert case_of(torch.empty(1, 1)) == case_of(torch.empty(99, 1)) == "fp32"
