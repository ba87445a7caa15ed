"""Every packed form against its formula, element by element in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferd.plugin.types import Form, PackedWeight
from inferd_kernels.reference import forms
from inferd_kernels.reference.forms import FP4_VALUES, dequantize

ROWS, COLUMNS, GROUP = 5, 24, 8


def planes(form: str, *, mins: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def codes(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    groups = (ROWS, COLUMNS // GROUP)
    match form:
        case "u4_group" | "fp4_block":
            out = {"codes": codes(0, 256, ROWS, COLUMNS // 2).to(torch.uint8), "scales": numbers(*groups)}
        case "i8_group":
            out = {"codes": codes(-128, 128, ROWS, COLUMNS).to(torch.int8), "scales": numbers(*groups).half()}
        case "i8_channel":
            out = {"codes": codes(-128, 128, ROWS, COLUMNS).to(torch.int8), "scales": numbers(ROWS)}
        case "fp8":
            out = {"codes": numbers(ROWS, COLUMNS).to(torch.float8_e4m3fn), "scales": numbers(ROWS)}
        case _:
            out = {"weight": numbers(ROWS, COLUMNS).to(torch.bfloat16)}
    return out | ({"mins": numbers(*groups).half()} if mins else {})


def by_hand(weight: PackedWeight, row: int, column: int) -> float:
    """Return one value in float64: exact enough to tell any wrong index or sign."""
    p: dict[str, Any] = {name: plane.float().double() for name, plane in weight.planes.items()}
    group = column // weight.group if weight.group else 0
    if weight.form == "dense":
        return p["weight"][row, column].item()
    if weight.form == "i8_channel" or (weight.form == "fp8" and p["scales"].ndim == 1):
        return (p["codes"][row, column] * p["scales"][row]).item()
    if weight.form == "fp8":
        return (p["codes"][row, column] * p["scales"][row // weight.group, group]).item()
    if weight.form in ("u4_group", "fp4_block"):
        byte = int(weight.planes["codes"][row, column // 2])
        code = (byte >> 4) if column % 2 else (byte & 15)
        number = FP4_VALUES[code] if weight.form == "fp4_block" else code
    else:
        number = p["codes"][row, column].item()
    low = p["mins"][row, group].item() if "mins" in p else 0.0
    return (number - weight.zero) * p["scales"][row, group].item() + low


def assert_by_hand(weight: PackedWeight) -> None:
    got = dequantize(weight)
    assert got.dtype == torch.float32
    assert got.shape == weight.shape
    flat = got.reshape(-1, weight.shape[-1])
    order = weight.permutation.tolist() if weight.permutation is not None else range(COLUMNS)
    want = torch.tensor([[by_hand(weight, r, c) for c in range(COLUMNS)] for r in range(len(flat))])
    placed = torch.empty_like(want)
    placed[:, list(order)] = want
    assert (flat - placed).abs().max() <= 1e-5 * placed.abs().max()


@pytest.mark.parametrize("chunk", [1, 2 * COLUMNS, 1 << 18])
@pytest.mark.parametrize(
    ("form", "zero", "mins"),
    [
        ("dense", 0, False),
        ("u4_group", 0, True),
        ("u4_group", 8, False),
        ("i8_group", 0, False),
        ("i8_group", 0, True),
        ("i8_group", 3, True),
        ("i8_channel", 0, False),
        ("fp8", 0, False),
        ("fp4_block", 0, False),
    ],
)
def test_forms(form: Form, zero: int, mins: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "CHUNK_VALUES", chunk)
    group = GROUP if form in ("u4_group", "i8_group", "fp4_block") else 0
    assert_by_hand(PackedWeight(form, (ROWS, COLUMNS), planes(form, mins=mins), group=group, zero=zero))


def test_fp8_blocks_may_be_cut_short_at_the_edges() -> None:
    parts = planes("fp8") | {"scales": torch.rand(1, 3) + 0.5}
    assert_by_hand(PackedWeight("fp8", (ROWS, COLUMNS), parts, group=9))
    parts |= {"scales": torch.rand(2, 6) + 0.5}
    assert_by_hand(PackedWeight("fp8", (ROWS, COLUMNS), parts, group=4))


def test_columns_return_to_their_places() -> None:
    order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(3))
    parts = planes("i8_group")
    assert_by_hand(PackedWeight("i8_group", (ROWS, COLUMNS), parts, group=GROUP, permutation=order))


def test_shapes_beyond_two_dimensions() -> None:
    weight = PackedWeight("u4_group", (1, ROWS, COLUMNS), planes("u4_group", mins=True), group=GROUP)
    assert_by_hand(weight)


def test_an_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown packed form 'u3'"):
        dequantize(PackedWeight("u3", (1,), {}))  # pyright: ignore[reportArgumentType]
