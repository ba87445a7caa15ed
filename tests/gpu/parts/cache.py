"""A paged cache with random content and scattered pages, made on the device."""

from __future__ import annotations

import torch

from inferd_kernels.triton.attn_prefill import KVCache, Ragged
from inferd_kernels.triton.kv_write import quantize_heads
from tests.gpu.bench import Bench


def paged(
    bench: Bench,
    lens: list[int],
    contexts: list[int],
    *,
    kv_heads: int,
    width: int,
    page: int,
    dtype: torch.dtype,
    eight_bit: torch.dtype | None = None,
    poison: bool = False,
) -> tuple[KVCache, Ragged]:
    """Return cache and batch. `poison` fills whatever no sequence owns with NaN."""
    widths = [-(-context // page) for context in contexts]
    num_pages = sum(widths) + 4
    order = torch.randperm(num_pages, device=bench.device).to(torch.int32)
    tables = torch.zeros(len(contexts), max(widths), dtype=torch.int32, device=bench.device)
    owned = torch.zeros(num_pages * page, dtype=torch.bool, device=bench.device)
    start = 0
    for b, (context, count) in enumerate(zip(contexts, widths, strict=True)):
        tables[b, :count] = order[start : start + count]
        positions = torch.arange(context, device=bench.device)
        owned[tables[b, positions // page].long() * page + positions % page] = True
        start += count
    planes = [bench.random(num_pages * page, kv_heads, width, dtype=dtype) for _ in "kv"]
    scales: list[torch.Tensor | None] = [None, None]
    if eight_bit is not None:
        quantized = [quantize_heads(plane, eight_bit) for plane in planes]
        planes, scales = [codes for codes, _ in quantized], [scale for _, scale in quantized]
    if poison:
        for plane in [*planes, *scales]:
            if plane is not None:
                bits = plane.view(torch.uint8) if plane.element_size() == 1 else plane
                bits[~owned] = 0x7F if plane.element_size() == 1 else float("nan")
    shaped = [None if p is None else p.view(num_pages, page, kv_heads, -1) for p in (*planes, *scales)]
    offsets = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32, device=bench.device)
    lengths = torch.tensor(contexts, dtype=torch.int32, device=bench.device)
    assert shaped[0] is not None
    assert shaped[1] is not None
    return KVCache(shaped[0], shaped[1], shaped[2], shaped[3]), Ragged(
        offsets, lengths, tables, 0, len(lens), sum(lens)
    )


def decoded(q: torch.Tensor, kv: KVCache, batch: Ragged, scores: object, *, rows: int = 1) -> torch.Tensor:
    """Run split decode with scratch of its own."""
    from inferd_kernels.triton.attn_decode import attn_decode, plan_splits, scratch_shapes, split_of
    from inferd_kernels.triton.attn_prefill import Scores

    assert isinstance(scores, Scores)
    context = batch.block_tables.shape[1] * kv.page
    offsets = torch.empty(batch.num_seqs + 1, dtype=torch.int32, device=q.device)
    splits = plan_splits(batch, offsets, split=split_of(q, kv), max_context=context, window=scores.window)
    shapes = scratch_shapes(batch.num_seqs, splits.max_splits, rows, *q.shape[1:])
    part, lse = (torch.empty(shape, dtype=torch.float32, device=q.device) for shape in shapes)
    out = torch.empty_like(q)
    attn_decode(q, kv, batch, scores, splits, (part, lse), out, rows=rows)
    return out
