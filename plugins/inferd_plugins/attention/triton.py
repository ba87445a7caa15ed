"""Attention by Triton kernels: paged prefill and split decode, float and 8-bit caches, graph-safe on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd.plugin.contracts import AttentionBackend
from inferd.plugin.types import Accept, Gqa, ProbeContext, Reject, Verdict
from inferd_kernels.available import why_no_triton
from inferd_plugins.attention.layout import layout_of
from inferd_plugins.attention.specs import ALL_FORMATS

if TYPE_CHECKING:
    import torch

    from inferd.plugin.contracts import Workspace
    from inferd.plugin.types import AttentionLayer, KVFormat, KVGroup, KVLayout, LayerKV, Qkv, StepInputs
    from inferd_plugins.attention.triton_plan import TritonPlan

MAX_WIDTH = 256


class TritonAttention(AttentionBackend):
    """Planes `k` and `v` hold [blocks, block_size, heads, width]; the 8-bit formats add `k_scale` and `v_scale`."""

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        missing = why_no_triton(context.device)
        reasons = [missing] if missing else []
        layers = context.spec.layers if context.spec else ()
        for spec in {layer.attention for layer in layers}:
            if not isinstance(spec, Gqa):
                reasons.append("multi-head latent attention")
            elif spec.head_dim > MAX_WIDTH:
                reasons.append(f"heads of width {spec.head_dim}, at most {MAX_WIDTH}")
        return Reject(tuple(dict.fromkeys(reasons))) if reasons else Accept()

    def kv_layout(self, group: KVGroup, format: KVFormat, block_size: int) -> KVLayout:
        layout = layout_of("triton", group, format, block_size, ALL_FORMATS)
        if block_size & (block_size - 1):
            raise ValueError(f"attention triton takes block sizes that are powers of 2, not {block_size}")
        if format == "fp8":
            _require_fp8()
        return layout

    def plan(self, inputs: StepInputs, workspace: Workspace) -> TritonPlan:
        from inferd_plugins.attention.triton_plan import TritonPlan

        return TritonPlan(inputs)

    def write(self, layer: AttentionLayer, x: Qkv, kv: LayerKV, plan: Any, inputs: StepInputs) -> torch.Tensor:
        return plan.write(layer, x, kv)

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        return plan.attend(layer, q, kv)


def _require_fp8() -> None:
    """Raise ValueError on a GPU without fp8 conversions (before compute capability 8.9)."""
    import torch

    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        raise ValueError("KV format fp8 needs a GPU of compute capability 8.9; int8 stores as little on this one")
