"""Rotary position embedding (RoFormer, Su et al. 2021), rotate-half convention."""

from __future__ import annotations

import torch


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first channels of each head.

    x [T, heads, head_dim]; cos, sin float32 [T, dim] with dim <= head_dim and both halves equal.
    Channel i < dim/2 pairs with channel i + dim/2.
    """
    dim = cos.shape[-1]
    turned = x[..., :dim] if dim < x.shape[-1] else x
    first, second = turned.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    out = torch.addcmul(turned * cos.unsqueeze(1), rotated, sin.unsqueeze(1)).to(x.dtype)
    return torch.cat((out, x[..., dim:]), dim=-1) if dim < x.shape[-1] else out
