"""Build a `Decoder` from a checkpoint: the only place that knows both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch

from inferd.load.errors import LoadError
from inferd.load.repack_cache import Purpose, RepackCache
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
from inferd.model.params import parameters
from inferd.model.prepare import Prepared, Preparer
from inferd.model.reader import HEAD, ParameterReader, Progress
from inferd.model.rope import RopeTable, rope_table
from inferd.plugin.types import AttentionLayer, Gqa, ModelSpec, RankPlacement, TensorRule
from inferd_kernels.cpu.pages import large_pages
from inferd_kernels.linear import InputFormat, LinearKernels, Rounding, default_kernels
from inferd_kernels.norms import gate_for, norm_for, records_gate

if TYPE_CHECKING:
    from inferd.load.checkpoint import Checkpoint
    from inferd.plugin.contracts import Quantizer


EMBED = "embed"


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
    cache: RepackCache | None = None,
) -> Decoder:
    """Read, pack, permute, fuse and place every weight that `placement` holds (default: all).

    What `cache` has of the repacked matrices is read from there; what it lacks it is given.

    Raises LoadError for a tensor that is missing, left over, of the wrong shape or of an unknown type.
    """
    placement = placement or whole_model(spec, device)
    if placement.shards > 1:
        raise LoadError("slices of matrices (tensor parallel) are not supported yet")
    reader = ParameterReader(spec, checkpoint, rules, quantizer, expand_gqa, progress)
    computed = expand_spec(spec) if expand_gqa else spec
    kernels = kernels or default_kernels()
    preparer = Preparer(reader, kernels, device, dtype)
    builder = _Builder(computed, reader, preparer, device, dtype, context, placement, kernels)
    if cache is None or not kernels.layout:
        return builder.decoder()
    purpose = Purpose(kernels.isa, kernels.layout, _rest(computed, rules, placement, quantizer))
    preparer.stored = cache.find(checkpoint.path, purpose, large_pages) or {}
    decoder = builder.decoder()
    if preparer.stored:
        reader.finish()
    else:
        cache.save_later(checkpoint.path, purpose, preparer.images())
    return decoder


def _rest(spec: ModelSpec, rules: Sequence[TensorRule], placement: RankPlacement, quantizer: Quantizer) -> str:
    """Say what repacked weights depend on besides the content of the checkpoint and the kernels."""
    how = f"{type(quantizer).__module__}.{type(quantizer).__qualname__} {vars(quantizer)!r}"
    return f"{version('inferd')} {how} {spec!r} {rules!r} {placement!r}"


def whole_model(spec: ModelSpec, device: str) -> RankPlacement:
    """Return the placement of a single rank."""
    return RankPlacement(0, device, tuple(range(spec.num_layers)), embeds=True, samples=True)


@dataclass(slots=True)
class _Builder:
    spec: ModelSpec
    reader: ParameterReader
    preparer: Preparer
    device: str
    dtype: torch.dtype
    context: int
    placement: RankPlacement
    kernels: LinearKernels
    _bytes: int = 0
    _matrices: int = 0
    _dequantised: set[str] = field(default_factory=set)
    _num_dequantised: int = 0
    _rounded_rows: set[Rounding] = field(default_factory=set)
    _unrecorded: set[str] = field(default_factory=set)
    """What of this model no native kernel computes."""

    def decoder(self) -> Decoder:
        tables = {
            name: rope_table(rope, self.context, self.spec.trained_context, self.device)
            for name, rope in self.spec.ropes.items()
        }
        with self.preparer.ahead(self._groups()):
            return self._decoder(tables)

    def _groups(self) -> list[list[str]]:
        """Return the matrices in the order in which they are asked for, those that read one input together."""
        ends = [[self._head_name]] if self.placement.samples else []
        return [*ends, *(names for index in self.placement.layers for names in _layer_groups(index))]

    def _decoder(self, tables: dict[str, RopeTable]) -> Decoder:
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
            rounds_activations=tuple(sorted(self._rounded_rows)),
            eager_because=self._eager(),
        )

    @property
    def _head_name(self) -> str:
        return HEAD.removesuffix(".weight") if self.reader.has(HEAD) else EMBED

    def _ends(self) -> tuple[Embedding | None, Linear | None]:
        """Return the embedding and the output matrix; tied models read one tensor for both."""
        head = self._linear([self._head_name])[0] if self.placement.samples else None
        return self._embedding(head) if self.placement.embeds else None, head

    def _embedding(self, head: Linear | None) -> Embedding:
        if head is not None and self._head_name == EMBED and head.kernel.rows_of_weight:
            return Embedding(head.kernel, head.weight, self.spec.embedding_scale, self.dtype)
        table = self.preparer.rows(EMBED)
        self._bytes += table.weight.nbytes
        return Embedding(table.kernel, table.weight, self.spec.embedding_scale, self.dtype)

    def _block(self, index: int, tables: dict[str, RopeTable]) -> Block:
        name = f"layers.{index}"
        attention = self.spec.layers[index].attention
        assert isinstance(attention, Gqa)
        qkv_names, gate_up_names, out_names, _ = _layer_groups(index)
        qkv, gate_up = FusedLinear(self._linear(qkv_names)), FusedLinear(self._linear(gate_up_names))
        return Block(
            attn_norm=self._norm(f"{name}.attn_norm", _common_format(qkv)),
            attention=SelfAttention(
                layer=self._attention_layer(index, attention, tables),
                qkv=qkv,
                out=self._linear(out_names)[0],
                heads=attention.heads,
                kv_heads=attention.kv_heads,
                head_dim=attention.head_dim,
            ),
            mlp_norm=self._norm(f"{name}.mlp_norm", _common_format(gate_up)),
            mlp=self._mlp(index, gate_up),
        )

    def _mlp(self, index: int, gate_up: FusedLinear) -> Mlp:
        down = self._linear(_layer_groups(index)[3])[0]
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
        biases = [self._bias(name) for name in names]
        parts = self.preparer.linear(names)
        if len(parts) == 1 < len(names):
            biases = [_joined(biases, [self._rows(name) for name in names])]
        return [self._layer(part, bias) for part, bias in zip(parts, biases, strict=True)]

    def _layer(self, part: Prepared, bias: torch.Tensor | None) -> Linear:
        self._bytes += part.kernel.nbytes(part.weight)
        self._count(part)
        return Linear(part.kernel, part.weight, None if bias is None else self._place(bias, self.dtype), part.rows)

    def _rows(self, name: str) -> int:
        return parameters(self.spec)[f"{name}.weight"][0]

    def _bias(self, name: str) -> torch.Tensor | None:
        return self.reader.values(f"{name}.bias") if self.reader.has(f"{name}.bias") else None

    def _place(self, values: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        placed = values.to(device=self.device, dtype=dtype, copy=True)
        self._bytes += placed.nbytes
        return placed

    def _count(self, part: Prepared) -> None:
        self._matrices += len(part.forms)
        if not part.kernel.packed:
            self._num_dequantised += len(part.forms)
            self._dequantised |= set(part.forms)
        if not part.kernel.capture_safe:
            self._unrecorded |= {f"{form} weights by torch" for form in part.forms}
        if part.kernel.rounds_rows:
            self._rounded_rows.add(part.kernel.rounds_rows)

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
    formats: set[InputFormat] = {part.kernel.input_format for part in fused.parts}
    if len(formats) == 1:
        return formats.pop()
    if all(name.startswith("device") for name in formats):
        return "device rows"
    return "plain" if "plain" in formats else "native rows"


def _joined(biases: list[torch.Tensor | None], rows: list[int]) -> torch.Tensor | None:
    """Stack the biases of fused matrices; one that has none gets zeros."""
    if all(bias is None for bias in biases):
        return None
    return torch.cat([torch.zeros(n) if bias is None else bias for bias, n in zip(biases, rows, strict=True)])


def _layer_groups(index: int) -> list[list[str]]:
    attn, mlp = f"layers.{index}.attn", f"layers.{index}.mlp"
    return [[f"{attn}.{part}" for part in "qkv"], [f"{mlp}.gate", f"{mlp}.up"], [f"{attn}.o"], [f"{mlp}.down"]]
