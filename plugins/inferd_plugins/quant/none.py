"""The baseline quantizer: weights as the checkpoint stores them."""

from __future__ import annotations

import torch

from inferd.plugin.contracts import Quantizer
from inferd.plugin.types import Accept, Form, PackedWeight, ProbeContext, Reject, TensorMeta, Verdict
from inferd_kernels.reference import forms

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class NoQuantizer(Quantizer):
    """Plain F32, F16 and BF16 tensors of safetensors files, copied so that no file stays mapped."""

    granularity = "none"

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        if context.source != "hf":
            return Reject(("reads safetensors only",))
        unknown = sorted(context.weight_types - FLOATS.keys())
        return Reject((f"{', '.join(unknown)} is not a plain float type",)) if unknown else Accept()

    def accepts(self, meta: TensorMeta) -> Form | Reject:
        return "dense" if meta.dtype in FLOATS else Reject((f"{meta.name}: {meta.dtype} is not a plain float type",))

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        if meta.dtype not in FLOATS:
            raise ValueError(f"{meta.name}: {meta.dtype} is not a plain float type")
        if tuple(data.shape) != meta.shape or data.dtype != FLOATS[meta.dtype]:
            raise ValueError(
                f"{meta.name}: expected {meta.dtype} of shape {meta.shape}, got {data.dtype} of {tuple(data.shape)}"
            )
        return PackedWeight("dense", meta.shape, {"weight": data.clone(memory_format=torch.contiguous_format)})

    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        return forms.dequantize(weight)
