"""Build a `Decoder` from a checkpoint: the only place that knows both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from inferd.load.errors import LoadError
from inferd.model.decoder import (
    Block,
    Decoder,
    Embedding,
    FusedLinear,
    Linear,
    Mlp,
    RmsNorm,
    SelfAttention,
)
from inferd.model.groups import expand_gqa as expand_spec
from inferd.model.groups import kv_groups
from inferd.model.reader import HEAD, ParameterReader, Progress
from inferd.model.rope import RopeTable, rope_table
from inferd.model.rows import concat_rows, dense
from inferd.plugin.types import AttentionLayer, Gqa, ModelSpec, PackedWeight, RankPlacement, TensorRule
from inferd_kernels.linear import InputFormat, LinearKernel, LinearKernels, default_kernels
from inferd_kernels.norms import gate_for, norm_for, records_gate

if TYPE_CHECKING:
    from inferd.load.checkpoint import Checkpoint
    from inferd.plugin.contracts import Quantizer


def build_decoder(
    spec: ModelSpec,
    checkpoint: Checkpoint,
    rules: Sequence[TensorRule],
    quantizer: Quantizer,
    *,
    device: str,
    dtype: torch.dtype,
    context: int,
    placement: RankPlacement | None = None,
    expand_gqa: bool = False,
    progress: Progress | None = None,
    kernels: LinearKernels | None = None,
) -> Decoder:
    """Read, pack, permute, fuse and place every weight that `placement` holds (default: all).

    Raises LoadError for a tensor that is missing, left over, of the wrong shape or of an unknown type.
    """
    placement = placement or whole_model(spec, device)
    if placement.shards > 1:
        raise LoadError("slices of matrices (tensor parallel) are not supported yet")
    reader = ParameterReader(spec, checkpoint, rules, quantizer, expand_gqa, progress)
    computed = expand_spec(spec) if expand_gqa else spec
    return _Builder(computed, reader, device, dtype, context, placement, kernels or default_kernels()).decoder()


def whole_model(spec: ModelSpec, device: str) -> RankPlacement:
    """Return the placement of a single rank."""
    return RankPlacement(0, device, tuple(range(spec.num_layers)), embeds=True, samples=True)


@dataclass(slots=True)
class _Builder:
    spec: ModelSpec
    reader: ParameterReader
    device: str
    dtype: torch.dtype
    context: int
    placement: RankPlacement
    kernels: LinearKernels
    _bytes: int = 0
    _matrices: int = 0
    _dequantised: set[str] = field(default_factory=set)
    _num_dequantised: int = 0
    _rounded_rows: bool = False
    _unrecorded: set[str] = field(default_factory=set)
    """What of this model no native kernel computes."""

    def decoder(self) -> Decoder:
        tables = {
            name: rope_table(rope, self.context, self.spec.trained_context, self.device)
            for name, rope in self.spec.ropes.items()
        }
        ends = self._ends()
        return Decoder(
            spec=self.spec,
            placement=self.placement,
            dtype=self.dtype,
            embed=ends[0],
            blocks=[self._block(index, tables) for index in self.placement.layers],
            norm=self._norm("norm", ends[1].kernel.input_format) if ends[1] else None,
            head=ends[1],
            weight_bytes=self._bytes,
            weights_note=self._note(),
            rounds_activations=self._rounded_rows,
            eager_because=self._eager(),
        )

    def _ends(self) -> tuple[Embedding | None, Linear | None]:
        """Return the embedding and the output matrix; tied models read one tensor for both."""
        tied = not self.reader.has(HEAD)
        table = head = None
        if self.placement.embeds or (self.placement.samples and tied):
            table = self.reader.packed("embed.weight")
        if self.placement.samples:
            head = self._head(table if tied and table else self.reader.packed(HEAD))
        return (self._embedding(table, head if tied else None) if self.placement.embeds and table else None), head

    def _head(self, weight: PackedWeight) -> Linear:
        kernel = self.kernels.choose(weight, self.device, self.dtype)
        self._count([weight], [kernel])
        return self._prepared(kernel, weight, None)

    def _embedding(self, weight: PackedWeight, tied: Linear | None) -> Embedding:
        kernel = self.kernels.choose(weight, self.device, self.dtype)
        if tied is not None and kernel.rows_of_weight:
            return Embedding(kernel, tied.weight, self.spec.embedding_scale, self.dtype)
        table = kernel.prepare_rows(weight, device=self.device)
        self._bytes += table.nbytes
        return Embedding(kernel, table, self.spec.embedding_scale, self.dtype)

    def _block(self, index: int, tables: dict[str, RopeTable]) -> Block:
        name = f"layers.{index}"
        attention = self.spec.layers[index].attention
        assert isinstance(attention, Gqa)
        qkv = FusedLinear(self._linear([f"{name}.attn.{part}" for part in "qkv"]))
        gate_up = FusedLinear(self._linear([f"{name}.mlp.gate", f"{name}.mlp.up"]))
        return Block(
            attn_norm=self._norm(f"{name}.attn_norm", _common_format(qkv)),
            attention=SelfAttention(
                layer=self._attention_layer(index, attention, tables),
                qkv=qkv,
                out=self._linear([f"{name}.attn.o"])[0],
                heads=attention.heads,
                kv_heads=attention.kv_heads,
                head_dim=attention.head_dim,
            ),
            mlp_norm=self._norm(f"{name}.mlp_norm", _common_format(gate_up)),
            mlp=self._mlp(index, gate_up),
        )

    def _mlp(self, index: int, gate_up: FusedLinear) -> Mlp:
        down = self._linear([f"layers.{index}.mlp.down"])[0]
        activation, written = self.spec.layers[index].mlp.activation, down.kernel.input_format
        if not records_gate(activation, written):
            self._unrecorded.add(f"{activation} by torch")
        return Mlp(gate_up, down, gate_for(activation, written))

    def _attention_layer(self, index: int, attention: Gqa, tables: dict[str, RopeTable]) -> AttentionLayer:
        name = f"layers.{index}.attn"
        table = tables[attention.rope] if attention.rope else None
        return AttentionLayer(
            index=index,
            group=next(g for g, group in enumerate(kv_groups(self.spec)) if index in group.layers),
            spec=attention,
            cos=table.cos if table else None,
            sin=table.sin if table else None,
            norm_eps=self.spec.norm_eps,
            q_norm=self._norm_weight(f"{name}.q_norm") if attention.qk_norm else None,
            k_norm=self._norm_weight(f"{name}.k_norm") if attention.qk_norm else None,
            sinks=self._place(self.reader.values(f"{name}.sinks")) if attention.sinks else None,
        )

    def _norm(self, name: str, input_format: InputFormat) -> RmsNorm:
        return RmsNorm(self._norm_weight(name), self.spec.norm_eps, norm_for(input_format))

    def _norm_weight(self, name: str) -> torch.Tensor:
        return self._place(self.reader.values(f"{name}.weight") + self.spec.norm_offset)

    def _linear(self, names: list[str]) -> list[Linear]:
        """Return the linear layers of matrices that read one input, fused into one where possible."""
        weights = [self.reader.packed(f"{name}.weight") for name in names]
        biases = [self._bias(name) for name in names]
        kernels = [self.kernels.choose(weight, self.device, self.dtype) for weight in weights]
        self._count(weights, kernels)
        if len({id(kernel) for kernel in kernels}) == 1:
            stack = weights if kernels[0].packed else [dense(weight) for weight in weights]
            fused = concat_rows(stack)
            if fused is not None:
                return [self._prepared(kernels[0], fused, _joined(biases, weights))]
        return [self._prepared(*parts) for parts in zip(kernels, weights, biases, strict=True)]

    def _prepared(self, kernel: LinearKernel, weight: PackedWeight, bias: torch.Tensor | None) -> Linear:
        prepared = kernel.prepare(weight, device=self.device, dtype=self.dtype)
        self._bytes += kernel.nbytes(prepared)
        if not kernel.capture_safe:
            self._unrecorded.add(f"{weight.form} weights by torch")
        return Linear(kernel, prepared, None if bias is None else self._place(bias, self.dtype), weight.shape[0])

    def _bias(self, name: str) -> torch.Tensor | None:
        return self.reader.values(f"{name}.bias") if self.reader.has(f"{name}.bias") else None

    def _place(self, values: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        placed = values.to(device=self.device, dtype=dtype, copy=True)
        self._bytes += placed.nbytes
        return placed

    def _count(self, weights: list[PackedWeight], kernels: list[LinearKernel]) -> None:
        self._matrices += len(weights)
        lost = [weight.form for weight, kernel in zip(weights, kernels, strict=True) if not kernel.packed]
        self._num_dequantised += len(lost)
        self._dequantised |= set(lost)
        self._rounded_rows |= any(kernel.input_format.startswith("int") for kernel in kernels)

    def _eager(self) -> str:
        if self.kernels.missing:
            return self.kernels.missing
        return ", ".join(sorted(self._unrecorded))

    def _note(self) -> str:
        missing = self.kernels.missing
        if not self._num_dequantised:
            return missing
        forms = ", ".join(sorted(self._dequantised))
        if missing:
            return f"{self._num_dequantised} of {self._matrices} matrices dequantised at load: {missing}"
        return (
            f"{self._num_dequantised} of {self._matrices} matrices dequantised to {str(self.dtype).split('.')[1]} "
            f"at load: no {self.device} kernel computes on {forms} yet"
        )


def _common_format(fused: FusedLinear) -> InputFormat:
    """What the norm before must write: every kernel also reads float rows, those of torch made by torch."""
    formats = {part.kernel.input_format for part in fused.parts}
    if len(formats) == 1:
        return formats.pop()
    return "plain" if "plain" in formats else "native rows"


def _joined(biases: list[Any], weights: list[PackedWeight]) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    return torch.cat([torch.zeros(w.shape[0]) if b is None else b for b, w in zip(biases, weights, strict=True)])
