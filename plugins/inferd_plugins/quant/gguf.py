"""The GGUF quantizer: block formats of the file, kept packed."""

from __future__ import annotations

from math import prod

import torch

from inferd.plugin.contracts import Quantizer
from inferd.plugin.types import Accept, Form, PackedWeight, ProbeContext, Reject, TensorMeta, Verdict
from inferd_kernels.reference import forms
from inferd_plugins.quant.codecs import CODECS, Codec, Planes
from inferd_plugins.quant.none import FLOATS

CHUNK_VALUES = 1 << 20


class GgufQuantizer(Quantizer):
    """Accepts what GGUF files in common use hold; one tensor is in flight at a time."""

    granularity = "group"

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        if context.source != "gguf":
            return Reject(("reads GGUF files only",))
        unknown = sorted(context.weight_types - CODECS.keys() - FLOATS.keys())
        return Reject((f"cannot decode {', '.join(unknown)}",)) if unknown else Accept()

    def accepts(self, meta: TensorMeta) -> Form | Reject:
        if meta.dtype in FLOATS:
            return "dense"
        codec = CODECS.get(meta.dtype)
        if codec is None:
            return Reject((f"{meta.name}: cannot decode {meta.dtype}",))
        if not meta.shape or meta.shape[-1] % codec.values:
            return Reject((f"{meta.name}: rows of {meta.shape} are not whole {meta.dtype} blocks of {codec.values}",))
        return codec.form

    def pack(self, meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
        form = self.accepts(meta)
        if isinstance(form, Reject):
            raise ValueError("; ".join(form.reasons))
        if data.dtype != torch.uint8 or data.ndim != 1:
            raise ValueError(f"{meta.name}: expected flat uint8 bytes, not {data.dtype} of shape {tuple(data.shape)}")
        if form == "dense":
            return _pack_dense(meta, data)
        return _pack_blocks(meta, data, CODECS[meta.dtype])

    def dequantize(self, weight: PackedWeight) -> torch.Tensor:
        return forms.dequantize(weight)


def _pack_dense(meta: TensorMeta, data: torch.Tensor) -> PackedWeight:
    dtype = FLOATS[meta.dtype]
    _check_size(meta, data, prod(meta.shape) * dtype.itemsize)
    return PackedWeight("dense", meta.shape, {"weight": data.clone().view(dtype).view(meta.shape)})


def _pack_blocks(meta: TensorMeta, data: torch.Tensor, codec: Codec) -> PackedWeight:
    rows, columns = prod(meta.shape[:-1]), meta.shape[-1]
    _check_size(meta, data, rows * columns // codec.values * codec.bytes)
    planes = _unpack(codec, data.view(-1, codec.bytes))
    shaped = {
        "codes": planes.codes.reshape(rows, columns // 2 if codec.form == "u4_group" else columns),
        "scales": planes.scales.reshape(rows, columns // codec.group),
    }
    if planes.mins is not None:
        shaped["mins"] = planes.mins.reshape(rows, columns // codec.group)
    return PackedWeight(codec.form, meta.shape, shaped, group=codec.group, zero=codec.zero)


def _unpack(codec: Codec, blocks: torch.Tensor) -> Planes:
    """Unpack a run of blocks at a time, so that the intermediate results stay small."""
    parts = [codec.unpack(part) for part in blocks.split(CHUNK_VALUES // codec.values)]
    mins = [part.mins for part in parts if part.mins is not None]
    return Planes(
        torch.cat([part.codes.flatten() for part in parts]),
        torch.cat([part.scales.flatten() for part in parts]),
        torch.cat([part.flatten() for part in mins]) if mins else None,
    )


def _check_size(meta: TensorMeta, data: torch.Tensor, nbytes: int) -> None:
    if data.numel() != nbytes:
        raise ValueError(f"{meta.name}: {meta.dtype} of shape {meta.shape} takes {nbytes} bytes, not {data.numel()}")
