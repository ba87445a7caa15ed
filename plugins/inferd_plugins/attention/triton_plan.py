"""One step of the Triton attention backend: which sequences which kernel serves.

Sequences of few query rows (decode, verify) lead the batch and go to the split decode kernel, one launch for each
run of equal row counts' power of two; the rest is prefill. The cut reads the host's row counts only, so a plan made
for a graph bucket, whose sequences all count as having the bucket's rows, serves every step of that bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from inferd.plugin.types import Gqa
from inferd_kernels.triton.attn_decode import MAX_ROWS, Splits, attn_decode, plan_splits, scratch_shapes, split_of
from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, attn_prefill
from inferd_kernels.triton.kv_write import HeadNorms, RopeTables, kv_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferd.plugin.types import AttentionLayer, LayerKV, Qkv, StepInputs


class Run(NamedTuple):
    """Neighbouring sequences of one launch."""

    first: int
    num_seqs: int
    first_token: int
    num_tokens: int
    rows: int
    """Most query rows of a sequence, a power of two; 0 = prefill."""


def cut(query_lens: Sequence[int]) -> list[Run]:
    """Return the launches that cover a batch, in row order."""
    runs: list[Run] = []
    token = 0
    for index, length in enumerate(query_lens):
        rows = 0 if length > MAX_ROWS else 1 << max(0, length - 1).bit_length()
        last = runs[-1] if runs else None
        if last is not None and last.rows == rows:
            runs[-1] = last._replace(num_seqs=last.num_seqs + 1, num_tokens=last.num_tokens + length)
        else:
            runs.append(Run(index, 1, token, length, rows))
        token += length
    return runs


class TritonPlan:
    """The launches of one step, shared by all layers.

    Scratch comes from torch's allocator: while a graph is captured that is the pool which all graphs of a model
    share, so no bucket keeps scratch of its own.
    """

    def __init__(self, inputs: StepInputs) -> None:
        self._inputs = inputs
        self._runs = cut(inputs.query_lens)
        self._splits: dict[tuple[int, int | None, int], Splits] = {}

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV) -> torch.Tensor:
        norms = None
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = HeadNorms(layer.q_norm, layer.k_norm, layer.norm_eps)
        rope = RopeTables(layer.cos, layer.sin) if layer.cos is not None and layer.sin is not None else None
        return kv_write(x, _cache(kv), self._inputs.slots[layer.group], self._inputs.positions, norms, rope)

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV) -> torch.Tensor:
        assert isinstance(layer.spec, Gqa)
        scores = Scores(layer.spec.scale, layer.spec.window, layer.spec.softcap, layer.sinks)
        cache, out = _cache(kv), torch.empty_like(q)
        for index, run in enumerate(self._runs):
            batch = self._batch(run, layer.group)
            if run.rows:
                self._decode(index, run, batch, q, cache, scores, out)
            else:
                attn_prefill(q, cache, batch, scores, out)
        return out

    def _batch(self, run: Run, group: int) -> Ragged:
        inputs = self._inputs
        tables = inputs.block_tables[group]
        return Ragged(inputs.cu_seqlens, inputs.context_lens, tables, run.first, run.num_seqs, run.num_tokens)

    def _decode(
        self, index: int, run: Run, batch: Ragged, q: torch.Tensor, kv: KVCache, scores: Scores, out: torch.Tensor
    ) -> None:
        splits = self._planned(index, batch, kv, scores.window, split_of(q, kv))
        shapes = scratch_shapes(run.num_seqs, splits.max_splits, run.rows, *q.shape[1:])
        part, lse = (torch.empty(shape, dtype=torch.float32, device=q.device) for shape in shapes)
        attn_decode(q, kv, batch, scores, splits, (part, lse), out, rows=run.rows, first_token=run.first_token)

    def _planned(self, index: int, batch: Ragged, kv: KVCache, window: int | None, split: int) -> Splits:
        """Return the splits of a run, counted once a step for all layers of one window."""
        key = (index, window, split)
        if key not in self._splits:
            offsets = torch.empty(batch.num_seqs + 1, dtype=torch.int32, device=batch.cu_seqlens.device)
            context = batch.block_tables.shape[1] * kv.page
            self._splits[key] = plan_splits(batch, offsets, split=split, max_context=context, window=window)
        return self._splits[key]


def _cache(kv: LayerKV) -> KVCache:
    return KVCache(kv["k"], kv["v"], kv.get("k_scale"), kv.get("v_scale"))
