"""The shared `write` of attention backends: qk-norm, rotary embedding, scatter into the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from inferd_kernels.reference.norm import rms_norm
from inferd_kernels.reference.rope import apply_rope


class Layer(Protocol):
    """The part of `inferd.plugin.types.AttentionLayer` that is read here."""

    @property
    def group(self) -> int: ...
    @property
    def cos(self) -> torch.Tensor | None: ...
    @property
    def sin(self) -> torch.Tensor | None: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def q_norm(self) -> torch.Tensor | None: ...
    @property
    def k_norm(self) -> torch.Tensor | None: ...


def norm_rope(layer: Layer, x: torch.Tensor, norm: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
    """Apply the layer's head norm (if any) and rotary embedding (if any) to x [T, heads, head_dim]."""
    if norm is not None:
        x = rms_norm(x, norm, layer.norm_eps)
    if layer.cos is None or layer.sin is None:
        return x
    return apply_rope(x, layer.cos.index_select(0, positions), layer.sin.index_select(0, positions))


def scatter(plane: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """Store values [T, heads, width] at `slots` [T] of plane [blocks, block_size, heads, width]."""
    plane.view(-1, *plane.shape[2:]).index_copy_(0, slots, values.to(plane.dtype))


def norm_rope_scatter(layer: Layer, x: Any, kv: Mapping[str, torch.Tensor], inputs: Any) -> torch.Tensor:
    """Store k and v of a `Qkv` at `inputs.slots[layer.group]` and return q, normed and rotated."""
    slots = inputs.slots[layer.group]
    scatter(kv["k"], norm_rope(layer, x.k, layer.k_norm, inputs.positions), slots)
    scatter(kv["v"], x.v, slots)
    return norm_rope(layer, x.q, layer.q_norm, inputs.positions)
