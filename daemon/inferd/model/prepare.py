"""Weights as kernels want them: taken from the cache of repacked weights, or read and packed by several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from inferd.load.repack_file import StoredMatrix
from inferd.model.rows import concat_rows, dense
from inferd_kernels.cpu.threads import physical_cores
from inferd_kernels.linear import LinearKernel, LinearKernels, WeightImage

if TYPE_CHECKING:
    from inferd.model.reader import ParameterReader
    from inferd.plugin.types import PackedWeight

Stored = Mapping[str, tuple[StoredMatrix, ...]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One multiplication: a weight that holds one or more matrices of the model, and its kernel."""

    kernel: LinearKernel
    weight: Any
    rows: int
    forms: tuple[str, ...]
    """Of each matrix in it, as the quantizer packed it."""


@dataclass(slots=True)
class Preparer:
    """Prepare the matrices of one decoder. Names are those of parameters without `.weight`."""

    reader: ParameterReader
    kernels: LinearKernels
    device: str
    dtype: torch.dtype
    stored: Stored = field(default_factory=dict)
    """Of the cache; what is not in it is read from the checkpoint."""
    made: dict[str, list[Prepared]] = field(default_factory=dict)
    """All that was prepared, by what `_key` calls it."""
    _coming: dict[str, Future[list[Prepared]]] = field(default_factory=dict)

    @contextmanager
    def ahead(self, groups: Sequence[Sequence[str]]) -> Iterator[None]:
        """Prepare the matrices of each group in threads of their own, in this order, while the body asks for them."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # each thread works on a matrix of its own
        pool = ThreadPoolExecutor(physical_cores(), "prepare")
        try:
            for names in groups:
                if _key(names) not in self.stored:
                    self._coming[_key(names)] = pool.submit(self._pack, names)
            yield
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def linear(self, names: Sequence[str]) -> list[Prepared]:
        """Return matrices that read one input, fused into one where possible."""
        return self._get(_key(names), names, lambda: self._pack(names))

    def rows(self, name: str) -> Prepared:
        """Return a matrix for `rows` of its kernel, where that is not what `linear` makes."""
        return self._get(f"rows of {name}", [name], lambda: [self._pack_rows(name)])[0]

    def images(self) -> dict[str, tuple[StoredMatrix, ...]]:
        """Return everything that can be kept in a file."""
        found: dict[str, tuple[StoredMatrix, ...]] = {}
        for key, parts in self.made.items():
            images = [(part, part.kernel.image(part.weight)) for part in parts]
            kept = [
                StoredMatrix(type(part.kernel).__name__, part.forms, part.rows, image.about, image.data)
                for part, image in images
                if image is not None
            ]
            if len(kept) == len(parts):
                found[key] = tuple(kept)
        return found

    def _get(self, key: str, names: Sequence[str], pack: Callable[[], list[Prepared]]) -> list[Prepared]:
        if key not in self.made:
            coming = self._coming.pop(key, None)
            self.made[key] = self._restored(key) or (pack() if coming is None else coming.result())
            self.reader.report(*(f"{name}.weight" for name in names))
        return self.made[key]

    def _restored(self, key: str) -> list[Prepared]:
        """Return what the cache has; empty where it lacks it or its kernel."""
        parts: list[Prepared] = []
        for stored in self.stored.get(key, ()):
            kernel = self.kernels.named(stored.kernel, stored.forms, self.device)
            if kernel is None:
                return []
            weight = kernel.from_image(WeightImage(stored.about, stored.data))
            parts.append(Prepared(kernel, weight, stored.rows, stored.forms))
        return parts

    def _pack(self, names: Sequence[str]) -> list[Prepared]:
        weights = [self.reader.packed(f"{name}.weight") for name in names]
        kernels = [self._choose(weight) for weight in weights]
        forms = tuple(weight.form for weight in weights)
        if len({id(kernel) for kernel in kernels}) == 1:
            fused = concat_rows(weights if kernels[0].packed else [dense(weight) for weight in weights])
            if fused is not None:
                return [self._prepared(kernels[0], fused, forms)]
        return [self._prepared(kernel, weight, (weight.form,)) for kernel, weight in zip(kernels, weights, strict=True)]

    def _prepared(self, kernel: LinearKernel, weight: PackedWeight, forms: tuple[str, ...]) -> Prepared:
        prepared = kernel.prepare(weight, device=self.device, dtype=self.dtype)
        return Prepared(kernel, prepared, weight.shape[0], forms)

    def _pack_rows(self, name: str) -> Prepared:
        weight = self.reader.packed(f"{name}.weight")
        kernel = self._choose(weight)
        table = kernel.prepare_rows(weight, device=self.device, dtype=self.dtype)
        return Prepared(kernel, table, weight.shape[0], (weight.form,))

    def _choose(self, weight: PackedWeight) -> LinearKernel:
        return self.kernels.choose(weight, self.device, self.dtype)


def _key(names: Sequence[str]) -> str:
    return " ".join(names)
