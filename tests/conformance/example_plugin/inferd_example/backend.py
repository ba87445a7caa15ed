"""An attention backend that writes only `attend`: qk-norm, RoPE and the cache are the shared `write`'s."""

from __future__ import annotations

from typing import Any

import torch

from inferd.plugin.contracts import AttentionBackend, Workspace
from inferd.plugin.types import (
    Accept,
    AttentionLayer,
    Gqa,
    KVFormat,
    KVGroup,
    KVLayout,
    LayerKV,
    ProbeContext,
    Reject,
    StepInputs,
    Verdict,
)


class ExampleAttention(AttentionBackend):
    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        layers = [layer.attention for layer in context.spec.layers] if context.spec else []
        if any(isinstance(a, Gqa) and (a.softcap or a.sinks) for a in layers):
            return Reject(("knows neither soft caps nor sinks",))
        return Accept()

    def kv_layout(self, group: KVGroup, format: KVFormat, block_size: int) -> KVLayout:
        if format != "fp32":
            raise ValueError(f"example stores fp32, not {format}")
        return KVLayout(group, format, block_size)

    def plan(self, inputs: StepInputs, workspace: Workspace) -> StepInputs:
        return inputs

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        out, start = torch.empty_like(q), 0
        for b, (length, context) in enumerate(zip(plan.query_lens, plan.context_lens_host, strict=True)):
            rows = slice(start, start + length)
            table = plan.block_tables[layer.group, b]
            # What lies behind the window may belong to somebody else by now.
            window = layer.spec.window if isinstance(layer.spec, Gqa) else None
            first = 0 if window is None else max(0, context - length - window + 1)
            keys, values = (_tokens(kv[name], table, context)[first:] for name in ("k", "v"))
            out[rows] = self._sequence(layer, q[rows], keys, values)
            start += length
        return out

    def _sequence(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, d] are the last T of the S positions that k and v [S, kv_heads, d] hold."""
        spec: Any = layer.spec
        group = spec.heads // spec.kv_heads
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        if spec.window is not None:
            seen = seen.triu(len(k) - len(q) - spec.window + 1)
        out = torch.empty_like(q)
        step = (self.options.heads_at_once if self.options else 0) or spec.kv_heads
        for first in range(0, spec.kv_heads, step):
            kv_heads, heads = slice(first, first + step), slice(first * group, (first + step) * group)
            some = q[:, heads].unflatten(1, (-1, group))
            scores = torch.einsum("tkgd,skd->kgts", some, k[:, kv_heads]) * spec.scale
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            out[:, heads] = torch.einsum("kgts,skd->tkgd", weights, v[:, kv_heads]).flatten(1, 2)
        return out


def _tokens(plane: torch.Tensor, table: torch.Tensor, context: int) -> torch.Tensor:
    """Return the first `context` tokens of a sequence from its blocks."""
    blocks = table[: -(-context // plane.shape[1])].long()
    return plane[blocks].flatten(0, 1)[:context]
