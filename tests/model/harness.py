"""Run a decoder over ragged batches with scattered blocks, without scheduler or sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from inferd.engine.kvcache import allocate
from inferd.engine.workspace import BucketWorkspace
from inferd.load.checkpoint import open_checkpoint
from inferd.model import kv_groups
from inferd.model.build import build_decoder
from inferd.model.decoder import Decoder
from inferd.plugin.contracts import AttentionBackend
from inferd.plugin.types import LayerKV, ModelSpec, StepCounts, StepInputs
from inferd_plugins.arch.llama import Llama
from inferd_plugins.arch.qwen2 import Qwen2
from inferd_plugins.arch.qwen3 import Qwen3
from inferd_plugins.attention.reference import ReferenceAttention
from inferd_plugins.attention.torch import TorchAttention
from inferd_plugins.quant.gguf import GgufQuantizer
from inferd_plugins.quant.none import NoQuantizer
from tests.model.plain import MemoryCheckpoint, own_rules

BACKENDS: dict[str, type[AttentionBackend]] = {"reference": ReferenceAttention, "torch": TorchAttention}
ARCHITECTURES = {"llama": Llama, "qwen2": Qwen2, "qwen3": Qwen3}
BLOCK_SIZE = 4


def load(path: Path, *, context: int | None = None, spec: ModelSpec | None = None, **options: Any) -> Decoder:
    """Build the decoder of a tiny model; `spec` replaces the one its configuration gives."""
    checkpoint = open_checkpoint(path)
    architecture = ARCHITECTURES[checkpoint.architecture_name]()
    read = architecture.spec(checkpoint.config())
    quantizer = options.pop("quantizer", None) or (NoQuantizer() if checkpoint.source == "hf" else GgufQuantizer())
    return build_decoder(
        spec or read,
        checkpoint,
        architecture.tensors(spec or read, checkpoint.source),
        quantizer,
        device="cpu",
        dtype=options.pop("dtype", torch.float32),
        context=context or read.trained_context,
        **options,
    )


def build(spec: ModelSpec, weights: dict[str, torch.Tensor], context: int, **options: Any) -> Decoder:
    """Build a decoder from weights in memory that have the decoder's own names."""
    checkpoint: Any = MemoryCheckpoint(weights)
    return build_decoder(
        spec,
        checkpoint,
        own_rules(spec),
        NoQuantizer(),
        device="cpu",
        dtype=torch.float32,
        context=context,
        **options,
    )


def read_spec(path: Path) -> ModelSpec:
    checkpoint = open_checkpoint(path)
    return ARCHITECTURES[checkpoint.architecture_name]().spec(checkpoint.config())


@dataclass(slots=True)
class Steps:
    """A KV pool with block tables, and steps over it."""

    decoder: Decoder
    backend: AttentionBackend
    num_blocks: int = 64
    poison: bool = False
    """Fill every slot that no sequence owns with NaN before each step (H5)."""
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    kv: Mapping[int, LayerKV] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        groups = kv_groups(self.decoder.spec)
        layouts = [self.backend.kv_layout(group, "fp32", BLOCK_SIZE) for group in groups]
        self.kv = allocate(layouts, self.num_blocks, "cpu", range(self.decoder.spec.num_layers))
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(3))
        self.free = order.tolist()

    def run(self, work: Sequence[tuple[str, Sequence[int]]]) -> list[torch.Tensor]:
        """Append tokens to each named sequence in one step; return logits [len(tokens), vocab] of each."""
        with torch.inference_mode():
            logits = self.decoder.logits(self.hidden(work, None))
        return list(logits.split([len(tokens) for _, tokens in work]))

    def hidden(self, work: Sequence[tuple[str, Sequence[int]]], before: torch.Tensor | None) -> torch.Tensor:
        """Run the decoder's own layers; `before` is the hidden state of the stage before it."""
        starts = [self.lengths.get(name, 0) for name, _ in work]
        for (name, tokens), start in zip(work, starts, strict=True):
            self._grow(name, start + len(tokens))
        if self.poison:
            self._poison({name: start for (name, _), start in zip(work, starts, strict=True)})
        inputs = self._inputs(work, starts)
        with torch.inference_mode():
            plan = self.backend.plan(inputs, BucketWorkspace("cpu"))
            return self.decoder.forward(inputs, before, self.kv, self.backend, plan)

    def truncate(self, name: str, length: int) -> None:
        self.lengths[name] = length

    def _grow(self, name: str, length: int) -> None:
        table = self.tables.setdefault(name, [])
        while len(table) * BLOCK_SIZE < length:
            table.append(self.free.pop())
        self.lengths[name] = length

    def _inputs(self, work: Sequence[tuple[str, Sequence[int]]], starts: Sequence[int]) -> StepInputs:
        lens = [len(tokens) for _, tokens in work]
        positions = [start + i for start, n in zip(starts, lens, strict=True) for i in range(n)]
        owners = [name for name, tokens in work for _ in tokens]
        slots = [
            self.tables[n][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
            for n, p in zip(owners, positions, strict=True)
        ]
        width = max(len(self.tables[name]) for name, _ in work)
        tables = [self.tables[name] + [0] * (width - len(self.tables[name])) for name, _ in work]
        groups = len(kv_groups(self.decoder.spec))
        contexts = [start + n for start, n in zip(starts, lens, strict=True)]
        return StepInputs(
            token_ids=torch.tensor([t for _, tokens in work for t in tokens], dtype=torch.int32),
            positions=torch.tensor(positions),
            cu_seqlens=torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.tensor([tables] * groups, dtype=torch.int32),
            slots=torch.tensor([slots] * groups),
            sample_rows=torch.arange(len(positions), dtype=torch.int32),
            query_lens=lens,
            context_lens_host=contexts,
            counts=StepCounts(0, 0, len(lens)),
        )

    def _poison(self, starts: Mapping[str, int]) -> None:
        owned = torch.zeros(self.num_blocks * BLOCK_SIZE, dtype=torch.bool)
        for name, table in self.tables.items():
            for position in range(starts.get(name, self.lengths[name])):
                owned[table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE] = True
        for layer in self.kv.values():
            for plane in layer.values():
                plane.view(-1, *plane.shape[2:])[~owned] = float("nan")


def assert_close(got: torch.Tensor, want: torch.Tensor, factor: float = 1e-5) -> None:
    """Logits agree within factor x max|logit|."""
    assert torch.isfinite(got).all()
    error = (got - want).abs().max().item()
    assert error <= factor * want.abs().max().item(), f"logits differ by {error}"
