"""Row operations on packed weights: every form keeps rows apart, so they need no unpacking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from inferd.plugin.types import PackedWeight
from inferd_kernels.reference.forms import dequantize


def select_rows(weight: PackedWeight, index: torch.Tensor) -> PackedWeight:
    """Return the weight with the rows of `index` [N'], in that order; rows may repeat."""
    if not _by_row(weight):
        weight = dense(weight)
    planes = {name: plane.index_select(0, index) for name, plane in weight.planes.items()}
    return replace(weight, shape=(len(index), *weight.shape[1:]), planes=planes)


def concat_rows(weights: Sequence[PackedWeight]) -> PackedWeight | None:
    """Stack weights of one form on top of each other; None when their forms or layouts differ."""
    first = weights[0]
    if len({_layout(w) for w in weights}) > 1 or not all(_by_row(w) and w.permutation is None for w in weights):
        return None
    planes = {name: torch.cat([w.planes[name] for w in weights]) for name in first.planes}
    return replace(first, shape=(sum(w.shape[0] for w in weights), *first.shape[1:]), planes=planes)


def dense(weight: PackedWeight) -> PackedWeight:
    """Return the weight dequantised to float32 (floats of any width stay as they are)."""
    if weight.form == "dense":
        return weight
    return PackedWeight(form="dense", shape=weight.shape, planes={"weight": dequantize(weight)})


def unpermuted(rows: int, heads: int) -> torch.Tensor:
    """Return the row order that undoes the llama GGUF converter.

    It stores channel i of the first half of a head beside channel i of the second half.
    """
    return torch.arange(rows).view(heads, rows // heads // 2, 2).transpose(1, 2).reshape(-1)


def repeated_heads(rows: int, heads: int, copies: int) -> torch.Tensor:
    """Return the row order in which each head stands `copies` times in a row."""
    return torch.arange(rows).view(heads, -1).repeat_interleave(copies, dim=0).reshape(-1)


def _by_row(weight: PackedWeight) -> bool:
    return all(plane.shape[0] == weight.shape[0] for plane in weight.planes.values())


def _layout(weight: PackedWeight) -> tuple[object, ...]:
    planes = tuple(sorted((name, plane.dtype, plane.shape[1:]) for name, plane in weight.planes.items()))
    return weight.form, weight.group, weight.zero, planes
