"""Checks of quantizers: stored tensors into packed forms and back, against values known in advance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch

from inferd.plugin.conformance.gguf_oracle import TYPES, random_rows
from inferd.plugin.conformance.report import Check, NonconformanceError, SkipCheckError, Subject, require
from inferd.plugin.contracts import Quantizer
from inferd.plugin.types import PackedWeight, ProbeContext, Reject, TensorMeta

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

BOUNDS = {"dense": 4e-3, "u4_group": 0.15, "i8_group": 0.01, "i8_channel": 0.02, "fp8": 0.04, "fp4_block": 0.2}
"""Root mean square error over that of the values, for plugins that are `approximate`."""

EXACT = 1e-6
"""Largest error over the largest value, for all others: rounding of one float32 product and sum."""


class Sample(NamedTuple):
    """A stored tensor whose values are known."""

    meta: TensorMeta
    data: torch.Tensor
    values: torch.Tensor  # float64, meta.shape


def _samples(subject: Subject, rows: int = 3, columns: int = 512, seed: int = 0) -> Iterator[Sample]:
    """Give a sample of every storage type the plugin accepts. Raises SkipCheckError if it knows none."""
    quantizer, found = subject.make(), False
    for source in _sources(subject):
        types = [*PLAIN, *TYPES] if source == "gguf" else [*PLAIN]
        for type_ in types:
            meta = TensorMeta(f"blk.0.{type_}.weight", (rows, columns), type_)
            if not isinstance(quantizer.accepts(meta), Reject):
                found = True
                yield _sample(meta, source, seed)
    if not found:
        raise SkipCheckError("accepts none of the storage types that the kit can make")


def _sources(subject: Subject) -> list[Literal["hf", "gguf"]]:
    """Return the kinds of checkpoint that the plugin's probe accepts."""
    both: tuple[Literal["hf", "gguf"], ...] = ("hf", "gguf")

    def accepts(source: Literal["hf", "gguf"]) -> bool:
        context = ProbeContext(
            architecture_name="llama", device=subject.device, dtype="fp32", source=source, options=subject.table
        )
        return not isinstance(subject.cls.probe(context), Reject)

    return [source for source in both if accepts(source)]


def _sample(meta: TensorMeta, source: Literal["hf", "gguf"], seed: int) -> Sample:
    if meta.dtype in TYPES:
        rows, columns = meta.shape
        raw, values = random_rows(meta.dtype, rows, columns, seed)
        return Sample(meta, _flat(raw), torch.tensor(values, dtype=torch.float64))
    generator = torch.Generator().manual_seed(seed)
    typed = torch.randn(meta.shape, generator=generator).to(PLAIN[meta.dtype])
    data = typed if source == "hf" else _flat(typed.view(torch.uint8).numpy().tobytes())
    return Sample(meta, data, typed.double())


def _flat(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def values(subject: Subject) -> None:
    """What comes back equals the stored values, within the bound of the plugin's exactness."""
    for sample in _samples(subject):
        quantizer: Quantizer = subject.make()
        packed = quantizer.pack(sample.meta, sample.data)
        _compare(subject, packed, quantizer.dequantize(packed), sample)


def _compare(subject: Subject, packed: PackedWeight, got: torch.Tensor, sample: Sample) -> None:
    want, difference = sample.values, got.double() - sample.values
    if subject.spec.exactness == "approximate":
        error, bound = float(difference.norm() / want.norm()), BOUNDS[packed.form]
    else:
        error, bound = float(difference.abs().max() / want.abs().max()), EXACT
    require(error <= bound, f"{sample.meta.dtype}: relative error {error:.2e} exceeds {bound:.0e}")


def real_formats(subject: Subject) -> None:
    """GGUF blocks with every bit in use decode to what the format's definition says, in every column."""
    if "gguf" not in _sources(subject):
        raise SkipCheckError("probe rejects GGUF checkpoints")
    for seed in range(1, 3):
        for sample in _samples(subject, rows=2, columns=256, seed=seed):
            quantizer: Quantizer = subject.make()
            got = quantizer.dequantize(quantizer.pack(sample.meta, sample.data))
            if subject.spec.exactness != "approximate":
                wrong = ((got.double() - sample.values).abs() > EXACT * sample.values.abs().max()).nonzero()
                require(not len(wrong), f"{sample.meta.dtype}: wrong at (row, column) {wrong[:4].tolist()}")


def row_slices(subject: Subject) -> None:
    """Packing some rows gives those rows of the packed whole: ranks may cut before or after."""
    for sample in _samples(subject, rows=6):
        quantizer: Quantizer = subject.make()
        whole = quantizer.dequantize(quantizer.pack(sample.meta, sample.data))
        for first, last in ((0, 1), (1, 4), (5, 6)):
            meta = sample.meta._replace(shape=(last - first, sample.meta.shape[1]))
            part = quantizer.dequantize(quantizer.pack(meta, _rows(sample, first, last)))
            require(
                torch.equal(part, whole[first:last]), f"{meta.dtype}: rows {first} to {last - 1} differ when cut out"
            )


def _rows(sample: Sample, first: int, last: int) -> torch.Tensor:
    if sample.data.dim() == 2:
        return sample.data[first:last].contiguous()
    width = sample.data.numel() // sample.meta.shape[0]
    return sample.data[first * width : last * width].clone()


def row_order(subject: Subject) -> None:
    """Rows are independent: reordered rows of the packed planes are the reordered rows."""
    for sample in _samples(subject, rows=6):
        quantizer: Quantizer = subject.make()
        packed = quantizer.pack(sample.meta, sample.data)
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        if packed.form == "fp8" and packed.planes["scales"].dim() == 2:
            continue
        planes = {name: plane[order].contiguous() for name, plane in packed.planes.items()}
        moved = PackedWeight(packed.form, packed.shape, planes, packed.group, packed.zero, packed.permutation)
        same = torch.equal(quantizer.dequantize(moved), quantizer.dequantize(packed)[order])
        require(same, f"{sample.meta.dtype}: a row's values depend on where it stands")


def forms(subject: Subject) -> None:
    """`pack` gives the form that `accepts` promised, with the planes that the form prescribes."""
    for sample in _samples(subject):
        quantizer: Quantizer = subject.make()
        promised, packed = quantizer.accepts(sample.meta), quantizer.pack(sample.meta, sample.data)
        where = sample.meta.dtype
        require(packed.form == promised, f"{where}: promised {promised}, packed {packed.form}")
        require(tuple(packed.shape) == sample.meta.shape, f"{where}: shape {packed.shape} of {sample.meta.shape}")
        for name, (shape, dtypes) in _planes(packed).items():
            plane = packed.planes.get(name)
            if plane is None:
                require(name == "mins", f"{where}: plane {name} is missing")
                continue
            require(tuple(plane.shape) == shape, f"{where}: plane {name} has shape {tuple(plane.shape)}, not {shape}")
            require(plane.dtype in dtypes, f"{where}: plane {name} is {plane.dtype}")
            require(
                plane.is_contiguous() and plane.device.type == "cpu", f"{where}: plane {name} is no plain CPU tensor"
            )


_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _planes(packed: PackedWeight) -> dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]:
    """Return shape and dtypes of each plane of a form, as `PackedWeight` defines them."""
    if packed.form == "dense":
        return {"weight": (tuple(packed.shape), _FLOATS)}
    rows, columns = packed.shape[0], packed.shape[-1]
    if packed.form == "i8_channel":
        return {"codes": ((rows, columns), (torch.int8,)), "scales": ((rows,), _FLOATS)}
    if packed.form == "fp8":
        return {"codes": ((rows, columns), (torch.float8_e4m3fn,))}
    require(packed.group > 0 and columns % packed.group == 0, f"group {packed.group} for {columns} columns")
    groups = ((rows, columns // packed.group), _FLOATS)
    nibbles = packed.form in ("u4_group", "fp4_block")
    codes = ((rows, columns // 2), (torch.uint8,)) if nibbles else ((rows, columns), (torch.int8,))
    return {"codes": codes, "scales": groups} | ({} if packed.form == "fp4_block" else {"mins": groups})


def dequantized(subject: Subject) -> None:
    """`dequantize` returns finite float32 values of the weight's shape."""
    for sample in _samples(subject, rows=1, columns=256):
        quantizer: Quantizer = subject.make()
        got = quantizer.dequantize(quantizer.pack(sample.meta, sample.data))
        require(got.dtype == torch.float32, f"{sample.meta.dtype}: dequantised to {got.dtype}")
        require(tuple(got.shape) == sample.meta.shape, f"{sample.meta.dtype}: dequantised to {tuple(got.shape)}")
        require(torch.isfinite(got).all(), f"{sample.meta.dtype}: values are not finite")


def wrong_size(subject: Subject) -> None:
    """Data that does not fit the declared shape is refused by ValueError, never read past its end."""
    for sample in _samples(subject):
        cuts = [sample.data[:-1], torch.cat((sample.data, sample.data[:1]))]
        for data in cuts:
            try:
                subject.make().pack(sample.meta, data.contiguous())
            except ValueError:
                continue
            raise NonconformanceError(
                f"{sample.meta.dtype}: data of {tuple(data.shape)} passed for {sample.meta.shape}"
            )


def unknown_types(subject: Subject) -> None:
    """A storage type that is not known is rejected with a reason, and `pack` raises ValueError."""
    meta = TensorMeta("blk.0.ffn_up.weight", (2, 256), "X9_Z")
    verdict = subject.make().accepts(meta)
    require(isinstance(verdict, Reject), f"accepts storage type X9_Z as {verdict}")
    require(isinstance(verdict, Reject) and verdict.reasons, "rejects without a reason")
    try:
        subject.make().pack(meta, torch.zeros(512, dtype=torch.uint8))
    except ValueError:
        return
    raise NonconformanceError("pack takes storage type X9_Z, which accepts rejects")


def inputs_kept(subject: Subject) -> None:
    """The stored tensor is not changed, and changing it later does not change the packed weight."""
    for sample in _samples(subject):
        quantizer: Quantizer = subject.make()
        before = sample.data.clone()
        packed = quantizer.pack(sample.meta, sample.data)
        first = quantizer.dequantize(packed).clone()
        require(torch.equal(before, sample.data), f"{sample.meta.dtype}: the stored tensor was changed")
        sample.data.zero_()
        same = torch.equal(first, quantizer.dequantize(packed))
        require(same, f"{sample.meta.dtype}: the packed weight still looks at the file")


def repeatable(subject: Subject) -> None:
    """Packing twice gives the same bits."""
    for sample in _samples(subject):
        first, second = (subject.make().pack(sample.meta, sample.data) for _ in range(2))
        for name, plane in first.planes.items():
            same = torch.equal(plane.contiguous().view(torch.uint8), second.planes[name].contiguous().view(torch.uint8))
            require(same, f"{sample.meta.dtype}: plane {name} differs the second time")


CHECKS: tuple[Check, ...] = (
    values,
    real_formats,
    row_slices,
    row_order,
    forms,
    dequantized,
    wrong_size,
    unknown_types,
    inputs_kept,
    repeatable,
)
