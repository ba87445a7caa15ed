"""Ragged batches over a paged cache in which every slot that no sequence owns holds NaN."""

from __future__ import annotations

import torch

from inferd_kernels.triton.attn_decode import attn_decode, plan_splits, scratch_shapes
from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, attend_reference, attn_prefill
from inferd_kernels.triton.kv_write import quantize_heads

PREFILL = {"BLOCK_M": 16, "TILE": 16, "num_warps": 4, "num_stages": 1}
DECODE = {"TILE": 16, "PROGRAMS": 1, "num_warps": 4, "num_stages": 1}


def batch(
    lens: list[int],
    contexts: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 16,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    eight_bit: torch.dtype | None = None,
    seed: int = 0,
) -> tuple[torch.Tensor, KVCache, Ragged]:
    """Return queries, cache and batch; pages lie in random order among each other."""
    generator = torch.Generator().manual_seed(seed)
    widths = [-(-context // page) for context in contexts]
    order = torch.randperm(sum(widths) + 3, generator=generator).tolist()
    tables = [[order.pop() for _ in range(width)] for width in widths]
    num_pages = sum(widths) + 3
    owned = torch.zeros(num_pages, page, dtype=torch.bool)
    for table, context in zip(tables, contexts, strict=True):
        for position in range(context):
            owned[table[position // page], position % page] = True
    planes = [torch.randn(num_pages, page, kv_heads, width, generator=generator).to(dtype) for _ in "kv"]
    scales: list[torch.Tensor | None] = [None, None]
    if eight_bit is not None:
        quantized = [quantize_heads(plane.flatten(0, 1), eight_bit) for plane in planes]
        planes = [codes.view(num_pages, page, kv_heads, width) for codes, _ in quantized]
        scales = [scale.view(num_pages, page, kv_heads, 1) for _, scale in quantized]
    for plane in [*planes, *scales]:
        if plane is not None:
            bits = plane.view(torch.uint8) if plane.element_size() == 1 else plane
            bits[~owned] = 0x7F if plane.element_size() == 1 else float("nan")  # 0x7F: 127, and NaN in fp8
    padded = [table + [0] * (max(widths) - len(table)) for table in tables]
    q = torch.randn(sum(lens), heads, width, generator=generator).to(dtype)
    ragged = Ragged(
        torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
        torch.tensor(padded, dtype=torch.int32),
        0,
        len(lens),
        sum(lens),
    )
    return q, KVCache(*planes, *scales), ragged


def run_decode(
    q: torch.Tensor, kv: KVCache, ragged: Ragged, scores: Scores, *, rows: int, split: int = 32
) -> torch.Tensor:
    """Run the decode kernels over scratch full of NaN."""
    context = int(ragged.context_lens.max())
    offsets = torch.zeros(ragged.num_seqs + 1, dtype=torch.int32)
    splits = plan_splits(ragged, offsets, split=split, max_context=context, window=scores.window)
    shapes = scratch_shapes(ragged.num_seqs, splits.max_splits, rows, *q.shape[1:])
    part, lse = (torch.full(shape, float("nan")) for shape in shapes)
    out = torch.full_like(q, float("nan"))
    first = int(ragged.cu_seqlens[ragged.first])
    attn_decode(q, kv, ragged, scores, splits, (part, lse), out, rows=rows, first_token=first, tiles=DECODE)
    return out


def run_prefill(q: torch.Tensor, kv: KVCache, ragged: Ragged, scores: Scores) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    attn_prefill(q, kv, ragged, scores, out, tiles=PREFILL)
    return out


def check(got: torch.Tensor, q: torch.Tensor, kv: KVCache, ragged: Ragged, scores: Scores) -> None:
    """Compare with plain torch; 16-bit results within a few roundings."""
    want = attend_reference(q, kv, ragged, scores)
    bound = 2e-5 if q.dtype == torch.float32 else 4e-3
    torch.testing.assert_close(got.float(), want.float(), rtol=bound, atol=bound)
