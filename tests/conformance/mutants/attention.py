"""Broken attention backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inferd.plugin.types import AttentionLayer, KVLayout, LayerKV, Qkv, StepInputs
from inferd_kernels.reference.attention import attention, gather_blocks
from inferd_plugins.attention.reference import ReferenceAttention


class _Mutant(ReferenceAttention):
    """Attends one sequence at a time; subclasses break one step of it."""

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        inputs, out, start = plan, torch.empty_like(q), 0
        for b, (length, context) in enumerate(zip(inputs.query_lens, inputs.context_lens_host, strict=True)):
            k, v = (self.gather(kv[name], inputs.block_tables[layer.group, b], context) for name in ("k", "v"))
            out[start : start + length] = self.one(layer, q[start : start + length], k, v, inputs, b)
            start += length
        return out

    def gather(self, plane: torch.Tensor, table: torch.Tensor, context: int) -> torch.Tensor:
        return gather_blocks(plane, table, context)

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        return self.plain(layer, q, k, v)

    def plain(self, layer: AttentionLayer, q: Any, k: Any, v: Any, **changes: Any) -> torch.Tensor:
        spec = layer.spec
        options = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap, "sinks": layer.sinks}
        return attention(q, k, v, **{**options, **changes})


class TiledHeads(_Mutant):
    """Reads KV head h % kv_heads."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        heads = torch.arange(q.shape[1]) % k.shape[1]
        return self.plain(layer, q, k[:, heads], v[:, heads])


class WindowOffByOne(_Mutant):
    """Lets a query see `window` positions before it."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        window = layer.spec.window
        return self.plain(layer, q, k, v, window=None if window is None else window + 1)


class ForgetsContext(_Mutant):
    """A chunk after the first attends within itself only."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        if len(q) == 1:
            return self.plain(layer, q, k, v)
        return self.plain(layer, q, k[-len(q) :], v[-len(q) :])


class IgnoresTable(_Mutant):
    """Takes the blocks that follow the first one."""

    def gather(self, plane: torch.Tensor, table: torch.Tensor, context: int) -> torch.Tensor:
        run = (torch.arange(len(table)) + table[0]) % len(plane)
        return gather_blocks(plane, run.int(), context)


class TouchesTail(_Mutant):
    """Multiplies whatever lies behind the context by 0."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        return self.plain(layer, q, k, v) + 0 * self.tail.sum()

    def gather(self, plane: torch.Tensor, table: torch.Tensor, context: int) -> torch.Tensor:
        self.tail = plane[table.long()].flatten(0, 1)[context:]
        return gather_blocks(plane, table, context)


class GathersBehindWindow(_Mutant):
    """Weighs keys behind the window with 0 in place of leaving them out."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        hidden = 0 if layer.spec.window is None else max(0, len(k) - len(q) - layer.spec.window + 1)
        return self.plain(layer, q, k, v) + 0 * v[:hidden].sum()


class VerifiesLoosely(_Mutant):
    """Each row of a verification sees all drafts, later ones too."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        if not inputs.counts.decode <= b < inputs.counts.decode + inputs.counts.verify:
            return self.plain(layer, q, k, v)
        return torch.cat([self.plain(layer, row[None], k, v) for row in q])


class FixedScale(_Mutant):
    """Scales by head_dim ** -0.5 whatever the layer says."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        return self.plain(layer, q, k, v, scale=q.shape[-1] ** -0.5)


class StopsAt256(_Mutant):
    """Loses the keys after the first span."""

    def one(self, layer: AttentionLayer, q: Any, k: Any, v: Any, inputs: StepInputs, b: int) -> torch.Tensor:
        if len(q) == 1 and len(k) > 256:
            k, v = k[:256], v[:256]
        return self.plain(layer, q, k, v)


class WritesTwice(_Mutant):
    """Stores the last token in slot 0 as well."""

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        q = super().write(layer, x, kv, plan, inputs)
        kv["k"].flatten(0, 1)[0] = x.k[-1]
        return q


class RestartsPositions(_Mutant):
    """Rotates each chunk as if it began at position 0."""

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        starts = torch.repeat_interleave(
            inputs.positions[inputs.cu_seqlens[:-1].long()], inputs.cu_seqlens.diff().long()
        )
        return super().write(layer, x, kv, plan, replace(inputs, positions=inputs.positions - starts))


class SkipsNorm(_Mutant):
    """Leaves out the norm of q and k."""

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        return super().write(replace(layer, q_norm=None, k_norm=None), x, kv, plan, inputs)


class ScalesInPlace(_Mutant):
    """Changes the values that it was handed."""

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        q = super().write(layer, x, kv, plan, inputs)
        x.v.mul_(1.5)
        return q


class TakesAnyFormat(_Mutant):
    """Accepts KV formats that it cannot store."""

    def kv_layout(self, group: Any, format: Any, block_size: int) -> KVLayout:
        return KVLayout(group, format, block_size)


CAUGHT_BY = {
    TiledHeads: "gqa_ratios",
    WindowOffByOne: "window",
    ForgetsContext: "chunked_equals_whole",
    IgnoresTable: "scattered_tables",
    TouchesTail: "unowned_slots",
    GathersBehindWindow: "behind_window",
    VerifiesLoosely: "verify_rows",
    FixedScale: "score_options",
    StopsAt256: "long_context",
    WritesTwice: "write_stays_in_slots",
    RestartsPositions: "cache_content",
    SkipsNorm: "rope_and_norm",
    ScalesInPlace: "inputs_kept",
    TakesAnyFormat: "layout",
}
