"""Attention by the C kernels: keys kept in columns, one order of summation a row, threads over spans or rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferd.plugin.contracts import AttentionBackend
from inferd.plugin.types import Accept, Gqa, KVPlane, ProbeContext, Reject, Verdict
from inferd_kernels.cpu.attention import MAX_GROUP, MAX_WIDTH, AttentionPlan, write
from inferd_kernels.cpu.library import why_missing
from inferd_plugins.attention.layout import beyond_plain_scores, layout_of, rejections, scale_planes
from inferd_plugins.attention.specs import ALL_FORMATS

if TYPE_CHECKING:
    import torch

    from inferd.plugin.contracts import Workspace
    from inferd.plugin.types import AttentionLayer, KVFormat, KVGroup, KVLayout, LayerKV, Qkv, StepInputs


class CpuAttention(AttentionBackend):
    """Plane `k_columns` holds each head's keys of a block as [width, block_size], `v_rows` its values.

    bf16 keys lie in pairs, [width / 2, block_size, 2].
    """

    rounded_kv = "bf16"

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        reasons = rejections(context, ALL_FORMATS) + beyond_plain_scores(context)
        if context.device.split(":")[0] != "cpu":
            reasons.append(f"device {context.device}")
        if context.dtype != "fp32":
            reasons.append(f"computes in fp32, not {context.dtype}")
        layers = context.spec.layers if context.spec else ()
        for spec in {layer.attention for layer in layers if isinstance(layer.attention, Gqa)}:
            if spec.heads // spec.kv_heads > MAX_GROUP or spec.head_dim > MAX_WIDTH:
                reasons.append(f"heads of width {spec.head_dim}, {spec.heads // spec.kv_heads} to a KV head")
            if context.kv_format == "bf16" and spec.head_dim % 2:
                reasons.append(f"bf16 keys of odd width {spec.head_dim}")
        missing = why_missing()
        if missing:
            reasons.append(missing)
        return Reject(tuple(reasons)) if reasons else Accept()

    def kv_layout(self, group: KVGroup, format: KVFormat, block_size: int) -> KVLayout:
        layout = layout_of("cpu", group, format, block_size, ALL_FORMATS)
        keys, values = group.planes
        planes = (KVPlane("k_columns", keys.heads, keys.width), KVPlane("v_rows", values.heads, values.width))
        return replace(layout, group=replace(group, planes=planes), scales=scale_planes(planes, format), by_block=True)

    def plan(self, inputs: StepInputs, workspace: Workspace) -> AttentionPlan:
        return AttentionPlan(inputs)

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        return write(layer, x, kv, inputs)

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        return plan.attend(layer, q, kv)
