"""Broken quantizers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inferd.plugin.types import Form, PackedWeight, Reject, TensorMeta
from inferd_plugins.quant.gguf import GgufQuantizer


class DropsScale(GgufQuantizer):
    """Uses one scale for all groups of a row."""

    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        if weight.form == "dense":
            return super().dequantize(weight)
        planes = dict(weight.planes)
        planes["scales"] = planes["scales"][:, :1].expand_as(planes["scales"]).contiguous()
        return super().dequantize(replace(weight, planes=planes))


class DropsMin(GgufQuantizer):
    """Forgets the offset of asymmetric types."""

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        packed = super().pack(meta, data)
        return replace(packed, planes={k: v for k, v in packed.planes.items() if k != "mins"})


class SwapsNibbles(GgufQuantizer):
    """Reads the high nibble of a byte as the even column."""

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        packed = super().pack(meta, data)
        if packed.form != "u4_group":
            return packed
        codes = packed.planes["codes"]
        return replace(packed, planes={**packed.planes, "codes": codes >> 4 | codes << 4})


class DependsOnRow(GgufQuantizer):
    """Halves every second row."""

    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        out = super().dequantize(weight).clone()
        out[1::2] *= 0.5
        return out


class BreaksPromise(GgufQuantizer):
    """Promises packed forms and gives a dense copy."""

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        packed = super().pack(meta, data)
        return PackedWeight("dense", packed.shape, {"weight": super().dequantize(packed)})


class PadsSilently(GgufQuantizer):
    """Fills what is missing with zeros and cuts what is too much."""

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        for length in range(data.numel() + 2):
            try:
                return super().pack(meta, torch.cat((data, data[:2] * 0))[: data.numel() + 1 - length])
            except ValueError:
                if length > 2 or isinstance(self.accepts(meta), Reject):
                    raise
        raise AssertionError


class AcceptsAll(GgufQuantizer):
    """Calls every storage type dense."""

    def accepts(self, meta: TensorMeta) -> Form | Reject:
        verdict = super().accepts(meta)
        return "dense" if isinstance(verdict, Reject) else verdict


class KeepsTheFile(GgufQuantizer):
    """Gives planes that are views of the mapped file."""

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        packed = super().pack(meta, data)
        if meta.dtype != "F32":
            return packed
        return replace(packed, planes={"weight": data.view(torch.float32).view(meta.shape)})


class HalfPrecision(GgufQuantizer):
    """Returns float16."""

    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        return super().dequantize(weight).half()


class Noisy(GgufQuantizer):
    """Rounds scales at random."""

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        packed = super().pack(meta, data)
        name = "weight" if packed.form == "dense" else "scales"
        plane: Any = packed.planes[name]
        noisy = (plane.float() * (1 + 1e-2 * torch.rand(plane.shape))).to(plane.dtype)
        return replace(packed, planes={**packed.planes, name: noisy})


CAUGHT_BY = {
    DropsScale: "values",
    DropsMin: "values",
    SwapsNibbles: "real_formats",
    DependsOnRow: "row_slices",
    BreaksPromise: "forms",
    PadsSilently: "wrong_size",
    AcceptsAll: "unknown_types",
    KeepsTheFile: "inputs_kept",
    HalfPrecision: "dequantized",
    Noisy: "repeatable",
}
