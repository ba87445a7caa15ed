"""Attention in plain maths: writes the whole score matrix of each sequence. The baseline of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd.plugin.contracts import AttentionBackend
from inferd.plugin.types import Accept, Gqa, ProbeContext, Reject, Verdict
from inferd_kernels.reference.attention import attention, gather_blocks
from inferd_plugins.attention.layout import layout_of, rejections

if TYPE_CHECKING:
    import torch

    from inferd.plugin.contracts import Workspace
    from inferd.plugin.types import AttentionLayer, KVFormat, KVGroup, KVLayout, LayerKV, StepInputs


class ReferenceAttention(AttentionBackend):
    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        reasons = rejections(context)
        return Reject(tuple(reasons)) if reasons else Accept()

    def kv_layout(self, group: KVGroup, format: KVFormat, block_size: int) -> KVLayout:
        return layout_of("reference", group, format, block_size)

    def plan(self, inputs: StepInputs, workspace: Workspace) -> StepInputs:
        return inputs

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        inputs: StepInputs = plan
        assert isinstance(layer.spec, Gqa)
        out = q.new_empty(q.shape)
        start = 0
        for b, (length, context) in enumerate(zip(inputs.query_lens, inputs.context_lens_host, strict=True)):
            table = inputs.block_tables[layer.group, b]
            rows = slice(start, start + length)
            out[rows] = attention(
                q[rows],
                gather_blocks(kv["k"], table, context),
                gather_blocks(kv["v"], table, context),
                scale=layer.spec.scale,
                window=layer.spec.window,
                softcap=layer.spec.softcap,
                sinks=layer.sinks,
            )
            start += length
        return out
