"""Float checkpoints packed at load by rounding to the nearest code: 4 bits, int8, fp8.

    int4: code = round((w - min) / scale), scale = (max - min) / 15       over a group of columns
    int8: code = round(w / scale), scale = max|w| / 127                   over a group, or a whole row
    fp8:  code = e4m3(w / scale), scale = max|w| / 448                    over a group, or a whole row

Nothing is calibrated, so 4 bits lose noticeably; what the packing costs is for `inferd eval` to say. Embeddings and the
output matrix, on which every token depends, keep 8 bits where the rest has 4.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from inferd.plugin.contracts import Quantizer
from inferd.plugin.types import Accept, Form, PackedWeight, ProbeContext, Reject, TensorMeta, Verdict
from inferd_kernels.reference import forms
from inferd_plugins.quant.gguf import GgufQuantizer
from inferd_plugins.quant.none import FLOATS, NoQuantizer
from inferd_plugins.quant.options import ChannelOptions, GroupOptions

SMALLEST_GROUP = 32
ENDS = ("*embed_tokens.*", "lm_head.*", "token_embd.*", "output.weight")
"""Names of embeddings and output matrices, in Hugging Face checkpoints and in GGUF files."""


class Packing(NamedTuple):
    """How one matrix is stored."""

    form: Form
    group: int = 0
    """0 = a scale a row."""


class RoundToNearest(Quantizer):
    """Packs the matrices of float checkpoints; vectors stay as they are."""

    granularity = "group"

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        packed = sorted(context.weight_types - FLOATS.keys())
        return Reject((f"packs float weights, not {', '.join(packed)}",)) if packed else Accept()

    def packing(self, meta: TensorMeta) -> Packing:
        """Return how a matrix of whole groups is stored."""
        raise NotImplementedError

    def accepts(self, meta: TensorMeta) -> Form | Reject:
        if meta.dtype not in FLOATS:
            return Reject((f"{meta.name}: {meta.dtype} is not a plain float type",))
        return self.packing(meta).form if _is_matrix(meta) else "dense"

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        weight = (GgufQuantizer() if data.dtype == torch.uint8 else NoQuantizer()).pack(meta, data)
        if not _is_matrix(meta):
            return weight
        form, group = self.packing(meta)
        values = weight.planes["weight"].float()
        groups = values.view(meta.shape[0], -1, group or meta.shape[1])
        planes = {"u4_group": _four_bits, "i8_group": _int8, "i8_channel": _int8, "fp8": _fp8}[form](groups)
        planes["codes"] = planes["codes"].view(meta.shape[0], -1)
        if not group:
            planes["scales"] = planes["scales"].flatten()
        # The groups of fp8 are told by the shape of its scales.
        return PackedWeight(form, meta.shape, planes, group=0 if form == "fp8" else group)

    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        return forms.dequantize(weight)


class Int4(RoundToNearest):
    """4 bits and a minimum a group."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options or GroupOptions())

    def packing(self, meta: TensorMeta) -> Packing:
        ends = any(fnmatchcase(meta.name, name) for name in ENDS)
        return Packing("i8_group" if ends else "u4_group", _divisor(meta, self.options.group))


class Int8(RoundToNearest):
    """Signed bytes."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options or ChannelOptions())

    def packing(self, meta: TensorMeta) -> Packing:
        group = self.options.group
        return Packing("i8_group", _divisor(meta, group)) if group else Packing("i8_channel")


class Fp8(RoundToNearest):
    """8-bit floats of 4 exponent and 3 mantissa bits (Micikevicius et al. 2022)."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options or ChannelOptions())

    def packing(self, meta: TensorMeta) -> Packing:
        return Packing("fp8", _divisor(meta, self.options.group) if self.options.group else 0)


def _is_matrix(meta: TensorMeta) -> bool:
    return len(meta.shape) == 2 and meta.shape[1] % SMALLEST_GROUP == 0


def _divisor(meta: TensorMeta, group: int) -> int:
    """Return the largest group, halving, that divides the columns."""
    while meta.shape[1] % group:
        group //= 2
    return group


def _four_bits(groups: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return planes of groups [N, G, K / G]; codes are chosen for the scales and minimums as stored."""
    low, high = groups.amin(-1).bfloat16(), groups.amax(-1)
    scales = ((high - low.float()) / 15).bfloat16()
    steps = scales.float().where(scales > 0, 1.0).unsqueeze(-1)
    codes = ((groups - low.float().unsqueeze(-1)) / steps).round_().clamp_(0, 15).to(torch.uint8)
    return {"codes": codes[..., 0::2] | (codes[..., 1::2] << 4), "scales": scales, "mins": low}


def _int8(groups: torch.Tensor) -> dict[str, torch.Tensor]:
    values, scales = _scaled(groups, 127)
    return {"codes": values.round_().to(torch.int8), "scales": scales}


def _fp8(groups: torch.Tensor) -> dict[str, torch.Tensor]:
    values, scales = _scaled(groups, 448)
    return {"codes": values.to(torch.float8_e4m3fn), "scales": scales}


def _scaled(groups: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return groups [N, G, K / G] over their scales [N, G], which take the largest value to `largest`."""
    scales = groups.abs().amax(-1) / largest
    return groups / scales.where(scales > 0, 1.0).unsqueeze(-1), scales
