"""Rows by expert, and the grouped product over them."""

from __future__ import annotations

import pytest
import torch

from inferd_kernels.reference.forms import dequantize
from inferd_kernels.triton.grouped_gemm import ExpertWeights, grouped_gemm
from inferd_kernels.triton.grouped_gemm_w4 import ExpertWeights4, grouped_gemm_w4, pack_experts_w4
from inferd_kernels.triton.moe import Experts, expert_mlp, expert_mlp_reference, moe_reference, moe_tiles
from inferd_kernels.triton.moe_align import align_reference, moe_align
from tests.kernels.triton.interpreted.memory import among_nan
from tests.kernels.triton.interpreted.test_gemm import weight4

TILES = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 1}
TILES_W4 = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
LARGE_W4 = TILES_W4 | {"BLOCK_M": 128}
"""Whose products chain."""


def chosen(tokens: int, experts: int, top_k: int, *, seed: int = 0) -> torch.Tensor:
    """Return experts [T, k], distinct for each token; high numbers are rarer, the last has no row."""
    generator = torch.Generator().manual_seed(seed)
    odds = torch.linspace(3, 0.2, experts)
    odds[-1] = 0
    return torch.multinomial(odds.expand(tokens, -1), top_k, generator=generator).int()


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 4, 2), (7, 5, 2), (40, 8, 3), (3, 12, 1)])
@pytest.mark.parametrize("block_m", [4, 16])
def test_blocks_hold_each_row_once_in_order(tokens: int, experts: int, top_k: int, block_m: int) -> None:
    picked = chosen(tokens, experts, top_k)
    blocks = moe_align(picked, experts, block_m)
    rows, owners = align_reference(picked, experts, block_m)
    assert blocks.experts.tolist() == owners + [-1] * (len(blocks.experts) - len(owners))
    for index, want in enumerate(rows):
        got = blocks.rows[index * block_m : (index + 1) * block_m].tolist()
        assert got == want + [tokens * top_k] * (block_m - len(want))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_grouped_product(dtype: torch.dtype, kind: torch.dtype | None, weighted: bool) -> None:
    tokens, experts, top_k, n, k = 21, 5, 2, 40, 72
    generator = torch.Generator().manual_seed(1)
    x = among_nan(torch.randn(tokens, k, generator=generator).to(dtype), 8)
    picked = chosen(tokens, experts, top_k)
    values = torch.randn(experts, n, k, generator=generator)
    if kind is None:
        values[-1] = float("nan")  # the expert without rows is not read
        weights = ExpertWeights(values.to(dtype))
    else:
        codes = (values * 20).round().to(kind) if kind == torch.int8 else values.to(kind)
        weights = ExpertWeights(codes, torch.rand(experts, n, generator=generator) * 0.1)
    factors = torch.rand(tokens, top_k, generator=generator) if weighted else None
    blocks = moe_align(picked, experts, TILES["BLOCK_M"])
    got = grouped_gemm(x, weights, blocks, top_k=top_k, num_rows=tokens * top_k, factors=factors, tiles=TILES)
    want = moe_reference(x, weights, picked, factors)
    bound = 1e-5 if dtype == torch.float32 else 4e-3
    assert float((got.float() - want).abs().max()) <= bound * float(want.abs().max())


def experts4(experts: int, n: int, k: int, group: int, *, mins: bool) -> ExpertWeights4:
    """Return 4-bit experts, the last of which is NaN."""
    made = [weight4(n, k, group, mins=mins, seed=seed) for seed in range(experts)]
    packed = pack_experts_w4(made, "cpu")
    for values, weight in zip(packed.dense(), made, strict=True):
        torch.testing.assert_close(values, dequantize(weight))
    for plane in packed[1:3] if mins else packed[1:2]:
        plane[-1] = float("nan")  # type: ignore[index]
    return packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tiles", [TILES_W4, LARGE_W4], ids=["few", "many"])
@pytest.mark.parametrize("mins", [False, True])
def test_the_grouped_product_of_four_bits(dtype: torch.dtype, tiles: dict[str, int], mins: bool) -> None:
    """Of groups of each size, and columns that fill whole blocks or do not."""
    tokens, experts, top_k, n = 21, 5, 2, 40
    picked = chosen(tokens, experts, top_k)
    generator = torch.Generator().manual_seed(1)
    for k, group in ((128, 64), (96, 32), (64, 32), (80, 16)):
        x = among_nan(torch.randn(tokens, k, generator=generator).to(dtype), 8)
        weights = experts4(experts, n, k, group, mins=mins)
        factors = torch.rand(tokens, top_k, generator=generator) if mins else None
        blocks = moe_align(picked, experts, tiles["BLOCK_M"])
        got = grouped_gemm_w4(x, weights, blocks, top_k=top_k, num_rows=tokens * top_k, factors=factors, tiles=tiles)
        want = moe_reference(x, weights, picked, factors)
        bound = 1e-5 if dtype == torch.float32 else 4e-3
        assert float((got.float() - want).abs().max()) <= bound * float(want.abs().max())


def test_tiles_follow_the_weights() -> None:
    """The interpreter's table: few rows an expert, many, float32, and 4 bits."""
    half, wide = torch.empty(1, 1, dtype=torch.float16), torch.empty(1, 1)
    floats, four = ExpertWeights(torch.empty(4, 8, 8)), experts4(4, 8, 32, 32, mins=False)
    assert [moe_tiles(half, floats, rows)["BLOCK_M"] for rows in (64, 65)] == [16, 32]
    assert moe_tiles(wide, floats, 65)["BLOCK_M"] == 16
    assert [moe_tiles(half, four, rows)["BLOCK_M"] for rows in (64, 65)] == [16, 128]
    assert "BLOCK_K" not in moe_tiles(half, four, 1)


def test_the_second_product_reads_a_row_for_each_expert() -> None:
    picked = chosen(9, 4, 2)
    x, weights = torch.randn(18, 64), ExpertWeights(torch.randn(4, 32, 64))
    blocks = moe_align(picked, 4, 16)
    got = grouped_gemm(x, weights, blocks, top_k=1, num_rows=18, tiles=TILES)
    want = torch.einsum("rk,rnk->rn", x, weights.codes[picked.flatten().long()])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


def expert_weights(experts: int, n: int, k: int, kind: torch.dtype | str | None, seed: int) -> Experts:
    if kind == "u4":
        return experts4(experts, n, k, 16 if k % 32 else 32, mins=seed == 2)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(experts, n, k, generator=generator) * k**-0.5
    if kind is None:
        return ExpertWeights(values)
    scales = values.abs().amax(-1) / (127 if kind == torch.int8 else 448)
    codes = values / scales.unsqueeze(-1)
    return ExpertWeights((codes.round() if kind == torch.int8 else codes).to(kind), scales)


@pytest.mark.parametrize("kind", [None, torch.int8, torch.float8_e4m3fn, "u4"])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 4, 2), (19, 6, 3), (3, 12, 1)])
def test_a_whole_block_of_experts(kind: torch.dtype | str | None, tokens: int, experts: int, top_k: int) -> None:
    """The decode case, where most experts have no row, and the prefill case, where blocks are ragged."""
    hidden, inner = 48, 80
    tiles = TILES_W4 if kind == "u4" else TILES
    gate_up = expert_weights(experts, 2 * inner, hidden, kind, 1)
    down = expert_weights(experts, hidden, inner, kind, 2)
    generator = torch.Generator().manual_seed(tokens)
    x, residual = (torch.randn(tokens, hidden, generator=generator) for _ in range(2))
    picked = chosen(tokens, experts, top_k)
    factors = torch.rand(tokens, top_k, generator=generator)
    for added in (None, residual):
        got = expert_mlp(x, gate_up, down, picked, factors, "silu", added, tiles=tiles)
        want = expert_mlp_reference(x, gate_up, down, picked, factors, "silu", added)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max())))
    # A token's row depends on no other token.
    alone = expert_mlp(x[-1:], gate_up, down, picked[-1:], factors[-1:], "silu", tiles=tiles)
    together = expert_mlp(x, gate_up, down, picked, factors, "silu", tiles=tiles)
    assert torch.equal(alone, together[-1:])
