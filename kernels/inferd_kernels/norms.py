"""Norms by what the linear layer after them reads: the whole of the fusion contract.

A linear kernel declares its input format; the model asks for the norm that writes it, once, at load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferd_kernels.reference.norm import rms_norm

if TYPE_CHECKING:
    import torch

    from inferd_kernels.linear import InputFormat

Norm = Callable[["torch.Tensor", "torch.Tensor", float], Any]


def norm_for(input_format: InputFormat) -> Norm:
    """Return the RMSNorm that writes `input_format`. Raises ValueError where none does."""
    if input_format != "plain":
        raise ValueError(f"no norm writes {input_format!r} yet; the linear kernel must read plain rows")
    return rms_norm
