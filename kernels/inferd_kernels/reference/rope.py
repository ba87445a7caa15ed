"""Rotary position embedding (RoFormer, Su et al. 2021), rotate-half convention."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rotation(NamedTuple):
    """Factors of each token, float32 [T, 1, dim]: out = x * cos + (x with swapped halves) * sin."""

    cos: torch.Tensor
    sin: torch.Tensor
    """First half negated."""


def rotation(cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> Rotation:
    """Pick the rows of tables [context, dim] (both halves equal) at positions [T]."""
    signed = sin.index_select(0, positions)
    signed[:, : sin.shape[-1] // 2].neg_()
    return Rotation(cos.index_select(0, positions).unsqueeze(1), signed.unsqueeze(1))


def apply_rope(x: torch.Tensor, turn: Rotation) -> torch.Tensor:
    """Rotate the first `dim` channels of each head of x [T, heads, head_dim].

    Channel i < dim/2 pairs with channel i + dim/2.
    """
    dim = turn.cos.shape[-1]
    turned = x[..., :dim] if dim < x.shape[-1] else x
    swapped = turned.unflatten(-1, (2, dim // 2)).flip(-2).flatten(-2)
    out = torch.addcmul(turned * turn.cos, swapped, turn.sin).to(x.dtype)
    return torch.cat((out, x[..., dim:]), dim=-1) if dim < x.shape[-1] else out
