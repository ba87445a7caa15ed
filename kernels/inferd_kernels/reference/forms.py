"""Turn packed weights back into float32 values: the reference of every packed form.

The order of operations is part of the definition: (code - zero) * scale, then + min, each rounded to
float32. Formats whose files define their values this way come out bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    Planes = Mapping[str, torch.Tensor]

CHUNK_VALUES = 1 << 18
"""Values expanded at a time, so that the intermediate results stay in the cache."""

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The e2m1 codes of the OCP microscaling formats specification, section 5.3.3."""


class Packed(Protocol):
    """What is read of an `inferd.plugin.types.PackedWeight`."""

    @property
    def form(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def planes(self) -> Mapping[str, torch.Tensor]: ...
    @property
    def group(self) -> int: ...
    @property
    def zero(self) -> int: ...
    @property
    def permutation(self) -> torch.Tensor | None: ...


def dequantize(weight: Packed) -> torch.Tensor:
    """Return float32 values of shape `weight.shape`, column order restored. Raises ValueError."""
    if weight.form not in _FORMS:
        raise ValueError(f"unknown packed form {weight.form!r}")
    values = _FORMS[weight.form](weight)
    if weight.permutation is not None:
        restored = torch.empty_like(values)
        restored[:, weight.permutation] = values
        values = restored
    return values.reshape(weight.shape)


def _dense(weight: Packed) -> torch.Tensor:
    return weight.planes["weight"].to(torch.float32)


def _u4_group(weight: Packed) -> torch.Tensor:
    def expand(codes: torch.Tensor, out: torch.Tensor) -> None:
        pairs = out.view(*codes.shape, 2)
        pairs[..., 0] = codes & 15
        pairs[..., 1] = codes >> 4

    return _grouped(weight, 2 * weight.planes["codes"].shape[1], expand)


def _i8_group(weight: Packed) -> torch.Tensor:
    return _grouped(weight, weight.planes["codes"].shape[1], lambda codes, out: out.copy_(codes))


def _grouped(weight: Packed, columns: int, expand: Callable[[torch.Tensor, torch.Tensor], object]) -> torch.Tensor:
    """Apply scales (and mins) of `weight.group` columns to codes, a few rows at a time."""
    codes, scales, mins = weight.planes["codes"], weight.planes["scales"], weight.planes.get("mins")
    out = torch.empty(codes.shape[0], columns, dtype=torch.float32)
    step = max(1, CHUNK_VALUES // max(1, columns))
    for start in range(0, codes.shape[0], step):
        rows = slice(start, start + step)
        expand(codes[rows], out[rows])
        groups = out[rows].view(-1, columns // weight.group, weight.group)
        if weight.zero:
            groups -= weight.zero
        groups *= scales[rows].to(torch.float32).unsqueeze(-1)
        if mins is not None:
            groups += mins[rows].to(torch.float32).unsqueeze(-1)
    return out


def _i8_channel(weight: Packed) -> torch.Tensor:
    return weight.planes["codes"].to(torch.float32) * weight.planes["scales"].to(torch.float32).unsqueeze(-1)


def _fp8(weight: Packed) -> torch.Tensor:
    codes, scales = weight.planes["codes"].to(torch.float32), weight.planes["scales"].to(torch.float32)
    if scales.ndim == 1:
        return codes * scales.unsqueeze(-1)
    rows, columns = codes.shape
    block_rows, block_columns = (weight.group, weight.group) if weight.group else _whole_blocks(codes, scales)
    wide = scales.repeat_interleave(block_rows, 0)[:rows].repeat_interleave(block_columns, 1)[:, :columns]
    return codes * wide


def _whole_blocks(codes: torch.Tensor, scales: torch.Tensor) -> tuple[int, int]:
    rows, columns = -(-codes.shape[0] // scales.shape[0]), -(-codes.shape[1] // scales.shape[1])
    return rows, columns


def _fp4_block(weight: Packed) -> torch.Tensor:
    table = torch.tensor(FP4_VALUES)

    def expand(codes: torch.Tensor, out: torch.Tensor) -> None:
        pairs = out.view(*codes.shape, 2)
        pairs[..., 0] = table[(codes & 15).to(torch.int32)]
        pairs[..., 1] = table[(codes >> 4).to(torch.int32)]

    return _grouped(weight, 2 * weight.planes["codes"].shape[1], expand)


_FORMS: dict[str, Callable[[Packed], torch.Tensor]] = {
    "dense": _dense,
    "u4_group": _u4_group,
    "i8_group": _i8_group,
    "i8_channel": _i8_channel,
    "fp8": _fp8,
    "fp4_block": _fp4_block,
}
