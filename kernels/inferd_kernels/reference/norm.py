"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the dtype of x.

    Computed in the dtype of `weight` (float32 for narrow models) and rounded once.
    """
    wide = x.to(weight.dtype)
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    inverse = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    return (wide * inverse).mul_(weight).to(x.dtype)
