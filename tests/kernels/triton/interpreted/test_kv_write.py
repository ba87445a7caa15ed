"""kv_write: norm, rotation, quantization and scatter, each with and without."""

from __future__ import annotations

import pytest
import torch

from inferd.plugin.types import Qkv
from inferd_kernels.triton.attn_prefill import KVCache
from inferd_kernels.triton.kv_write import HeadNorms, RopeTables, kv_write, kv_write_reference

HEADS, KV_HEADS, PAGE = 9, 3, 4


def projections(width: int, dtype: torch.dtype) -> Qkv:
    """Return views of one joined projection, as the model has them."""
    joined = torch.randn(5, HEADS + 2 * KV_HEADS, width, generator=torch.Generator().manual_seed(3)).to(dtype)
    joined[2, HEADS:] = 0.0  # a head of zeros has no scale of its own
    return Qkv(*joined.split((HEADS, KV_HEADS, KV_HEADS), dim=1))


def empty_cache(width: int, dtype: torch.dtype, *, scaled: bool) -> KVCache:
    def plane(last: int, kind: torch.dtype) -> torch.Tensor:
        return torch.full((4, PAGE, KV_HEADS, last), 9.0).to(kind)

    scales = [plane(1, torch.float32) for _ in "kv"] if scaled else [None, None]
    return KVCache(plane(width, dtype), plane(width, dtype), *scales)


def tables(dim: int) -> RopeTables:
    angles = torch.arange(12).unsqueeze(1) * torch.linspace(1.0, 0.1, dim // 2)
    made = RopeTables(angles.cos().repeat(1, 2), angles.sin().repeat(1, 2))
    for table in made:
        table[[3, 4, 6, 7, 8, 10, 11]] = float("nan")  # positions that no row stands at
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("cache", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("width", "rope_dim"), [(24, 24), (24, 8), (64, 0)])
@pytest.mark.parametrize("norm", [False, True])
def test_equals_the_reference(
    dtype: torch.dtype, cache: torch.dtype | None, width: int, rope_dim: int, norm: bool
) -> None:
    x = projections(width, dtype)
    slots, positions = torch.tensor([3, -1, 7, 15, 0]), torch.tensor([0, 1, 2, 9, 5])
    generator = torch.Generator().manual_seed(5)
    weights = [torch.rand(width, generator=generator) + 0.5 for _ in "qk"]
    norms = HeadNorms(weights[0], weights[1], 1e-6) if norm else None
    rope = tables(rope_dim) if rope_dim else None
    got, want = (empty_cache(width, cache or dtype, scaled=cache is not None) for _ in range(2))
    x.k[1] = x.v[1] = float("nan")  # a padding row, which is stored nowhere
    before = [plane.clone() for plane in x]
    queries = kv_write(x, got, slots, positions, norms, rope)
    expected = kv_write_reference(x, want, slots, positions, norms, rope)
    bound = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(queries, expected, rtol=bound, atol=bound)
    # The interpreter rounds to fp8 coarsely: its largest codes may be one step off.
    allowed = {None: bound, torch.int8: 1.0, torch.float8_e4m3fn: 64.0}[cache]
    for mine, theirs in zip(got[:2], want[:2], strict=True):
        assert float((mine.float() - theirs.float()).abs().max()) <= allowed
    for mine, theirs in zip(got[2:], want[2:], strict=True):
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, x, strict=True))


def test_padding_rows_store_nothing() -> None:
    cache = empty_cache(16, torch.float32, scaled=False)
    kv_write(projections(16, torch.float32), cache, torch.full((5,), -1), torch.zeros(5, dtype=torch.int64), None, None)
    assert bool((cache.k == 9).all())
    assert bool((cache.v == 9).all())
