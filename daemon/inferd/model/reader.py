"""Strict reading of a checkpoint into the parameters of a `Decoder`.

Before the first byte is read every parameter has exactly one tensor of the right shape, and every
tensor of the file is spoken for; anything else is a LoadError that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from inferd.load.errors import LoadError
from inferd.model.params import parameters
from inferd.model.rows import repeated_heads, select_rows, unpermuted
from inferd.plugin.types import Gqa, ModelSpec, PackedWeight, Reject, TensorMeta, TensorRule

if TYPE_CHECKING:
    from inferd.load.checkpoint import Checkpoint
    from inferd.plugin.contracts import Quantizer

Progress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all)."""

HEAD = "lm_head.weight"


@dataclass(slots=True)
class ParameterReader:
    """Read parameters by their `Decoder` names."""

    spec: ModelSpec
    checkpoint: Checkpoint
    rules: Sequence[TensorRule]
    quantizer: Quantizer
    expand_gqa: bool = False
    progress: Progress | None = None
    _sources: dict[str, TensorRule] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _done: int = 0

    def __post_init__(self) -> None:
        self._sources = match_rules(self.spec, self.checkpoint, self.rules)
        check_forms(self.spec, self.checkpoint, self._sources, self.quantizer)

    def has(self, name: str) -> bool:
        return name in self._sources

    def packed(self, name: str) -> PackedWeight:
        """Return a parameter in its packed form, rows in the model's own order. Threads may call it."""
        rule = self._sources[name]
        meta = self.checkpoint.tensors()[rule.source]
        data = self.checkpoint.read(rule.source)
        try:
            weight = self.quantizer.pack(meta, data)
        except ValueError as error:
            raise LoadError(f"{self.checkpoint.path}: tensor {rule.source}: {error}") from None
        self._sizes[name] = data.nbytes
        if rule.unpermute_heads:
            weight = select_rows(weight, unpermuted(weight.shape[0], rule.unpermute_heads))
        return self._expanded(name, weight)

    def values(self, name: str) -> torch.Tensor:
        """Return a parameter dequantised to float32."""
        values = self.quantizer.dequantize(self.packed(name)).float()
        self.report(name)
        return values

    def report(self, *names: str) -> None:
        """Count parameters as read, and tell. Those that came from elsewhere count as soon as `finish` is called."""
        self._done += sum(self._sizes.pop(name, 0) for name in names)
        self._tell()

    def finish(self) -> None:
        """Tell that nothing more is to be read."""
        if self._done < self.checkpoint.nbytes:
            self._done = self.checkpoint.nbytes
            self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress("weights", self._done, self.checkpoint.nbytes)

    def _expanded(self, name: str, weight: PackedWeight) -> PackedWeight:
        parts = name.split(".")
        if not self.expand_gqa or parts[2:3] != ["attn"] or parts[3] not in ("k", "v"):
            return weight
        attention = self.spec.layers[int(parts[1])].attention
        assert isinstance(attention, Gqa)
        copies = attention.heads // attention.kv_heads
        return select_rows(weight, repeated_heads(weight.shape[0], attention.kv_heads, copies))


def match_rules(spec: ModelSpec, checkpoint: Checkpoint, rules: Sequence[TensorRule]) -> dict[str, TensorRule]:
    """Return the rule of each parameter that the checkpoint has. Raises LoadError for any mismatch."""
    metas = checkpoint.tensors()
    where = checkpoint.path
    shapes = parameters(spec)
    sources: dict[str, TensorRule] = {}
    for rule in rules:
        if not rule.target:
            continue
        shape = shapes.get(rule.target) or _optional_shape(spec, rule.target)
        if shape is None:
            raise LoadError(f"{where}: tensor {rule.source}: the model has no parameter {rule.target}")
        if rule.target in sources:
            raise LoadError(f"{where}: tensors {sources[rule.target].source} and {rule.source} both give {rule.target}")
        if rule.source in metas:
            sources[rule.target] = rule
        elif not rule.optional:
            raise LoadError(f"{where}: tensor {rule.source} is missing (parameter {rule.target})")
    for name in shapes:
        if name not in sources:
            raise LoadError(f"{where}: no tensor gives parameter {name}")
    _check_leftovers(checkpoint, rules)
    return sources


def check_forms(spec: ModelSpec, checkpoint: Checkpoint, sources: dict[str, TensorRule], quantizer: Quantizer) -> None:
    """Raise LoadError for a tensor of the wrong shape or of a type the quantizer does not know."""
    shapes = parameters(spec)
    for name, rule in sources.items():
        meta: TensorMeta = checkpoint.tensors()[rule.source]
        shape = shapes.get(name) or _optional_shape(spec, name)
        if tuple(meta.shape) != shape:
            raise LoadError(f"{checkpoint.path}: tensor {rule.source} has shape {tuple(meta.shape)}, expected {shape}")
        verdict = quantizer.accepts(meta)
        if isinstance(verdict, Reject):
            raise LoadError(f"{checkpoint.path}: tensor {rule.source} ({meta.dtype}): {'; '.join(verdict.reasons)}")


def _optional_shape(spec: ModelSpec, name: str) -> tuple[int, ...] | None:
    """A tied model may still carry an output matrix of its own, which then counts."""
    return (spec.vocab_size, spec.hidden_size) if name == HEAD else None


def _check_leftovers(checkpoint: Checkpoint, rules: Sequence[TensorRule]) -> None:
    known = {rule.source for rule in rules}
    left = [name for name in checkpoint.tensors() if name not in known]
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        raise LoadError(f"{checkpoint.path}: nothing reads tensor {', '.join(left[:5])}{more}")
