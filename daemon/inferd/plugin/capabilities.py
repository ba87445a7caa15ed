"""Compare what a plugin declares it can do with what is asked, before anything is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.plugin.types import Gqa, Mla

if TYPE_CHECKING:
    from inferd.plugin.contracts import Capabilities, PluginSpec
    from inferd.plugin.types import ModelSpec, ProbeContext


def lacks(spec: PluginSpec, context: ProbeContext) -> list[str]:
    """Return one reason for each thing `context` needs that `spec` does not offer."""
    can = spec.capabilities
    reasons: list[str] = []
    device = context.device.partition(":")[0]
    if can.devices and device not in can.devices:
        reasons.append(f"device {device} not among {_names(can.devices)}")
    if can.dtypes and context.dtype not in can.dtypes:
        reasons.append(f"dtype {context.dtype} not among {_names(can.dtypes)}")
    if spec.kind == "attention":
        reasons += _attention_lacks(can, context)
    return reasons


def _attention_lacks(can: Capabilities, context: ProbeContext) -> list[str]:
    reasons: list[str] = []
    if can.kv_formats and context.kv_format not in can.kv_formats:
        reasons.append(f"KV format {context.kv_format} not among {_names(can.kv_formats)}")
    return reasons + (_model_lacks(can, context.spec) if context.spec else [])


def _model_lacks(can: Capabilities, model: ModelSpec) -> list[str]:
    layers = [layer.attention for layer in model.layers]
    dims = {a.head_dim for a in layers if isinstance(a, Gqa)}
    reasons: list[str] = []
    if can.head_dims and not dims <= can.head_dims:
        reasons.append(f"head_dim {_names(dims - can.head_dims)} not among {_names(can.head_dims)}")
    if not can.sliding_window and any(isinstance(a, Gqa) and a.window for a in layers):
        reasons.append("no sliding window")
    if not can.mla and any(isinstance(a, Mla) for a in layers):
        reasons.append("no multi-head latent attention")
    return reasons


def _names(values: frozenset[str] | frozenset[int] | set[int] | frozenset) -> str:
    return ", ".join(str(v) for v in sorted(values))
