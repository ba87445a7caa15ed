"""The shared `write` of attention backends: qk-norm, rotary embedding, scatter into the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from inferd_kernels.reference.norm import rms_norm
from inferd_kernels.reference.rope import Rotation, apply_rope, rotation


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


def norm_rope_scatter(layer: Layer, x: Any, kv: Mapping[str, torch.Tensor], inputs: Any) -> torch.Tensor:
    """Store k and v of a `Qkv` at `inputs.slots[layer.group]` and return q, normed and rotated."""
    slots = inputs.slots[layer.group]
    turn = None
    if layer.cos is not None and layer.sin is not None:
        turn = rotation(layer.cos, layer.sin, inputs.positions)
    scatter(kv["k"], norm_rope(x.k, layer.k_norm, layer.norm_eps, turn), slots)
    scatter(kv["v"], x.v, slots)
    return norm_rope(x.q, layer.q_norm, layer.norm_eps, turn)


def norm_rope(x: torch.Tensor, norm: torch.Tensor | None, eps: float, turn: Rotation | None) -> torch.Tensor:
    """Apply a head norm (if any) and a rotation (if any) to x [T, heads, head_dim]."""
    if norm is not None:
        x = rms_norm(x, norm, eps)
    return x if turn is None else apply_rope(x, turn)


def scatter(plane: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """Store values [T, heads, width] at `slots` [T] of plane [blocks, block_size, heads, width]."""
    plane.view(-1, *plane.shape[2:]).index_copy_(0, slots, values.to(plane.dtype))
