"""Decoders of a model's shape with random weights made on the device, and an engine around them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from inferd.engine.builder import BatchBuilder
from inferd.engine.engine import Engine
from inferd.engine.local import LocalExecutor
from inferd.engine.runner import Runner
from inferd.engine.scheduler import Scheduler
from inferd.engine.shape import EngineShape
from inferd.model import kv_groups
from inferd.model.build import whole_model
from inferd.model.decoder import Block, Decoder, Embedding, FusedLinear, Linear, Mlp, RmsNorm, SelfAttention
from inferd.model.rope import rope_table
from inferd.plugin.types import AttentionLayer, DenseMlp, Gqa, KVFormat, KVGroupSize, LayerSpec, ModelSpec, RopeSpec
from inferd_kernels.linear import InputFormat
from inferd_kernels.norms import gate_for, norm_for
from inferd_kernels.triton.gemm_w8 import Weight8
from inferd_kernels.triton.linear import GpuDenseLinear, GpuRounded8
from inferd_plugins.attention.triton import TritonAttention
from inferd_plugins.kv.paged import PagedKV


@dataclass(frozen=True)
class Size:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    width: int
    vocab: int
    tied: bool
    qk_norm: bool

    @property
    def layer_weights(self) -> int:
        """Elements of the matrices of all layers: what every token is multiplied with."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.width * self.hidden
        return self.layers * (attention + 3 * self.inner * self.hidden)

    @property
    def table_weights(self) -> int:
        """Elements of the embedding, and of the output matrix as well."""
        return self.vocab * self.hidden


QWEN3_0_6B = Size(1024, 3072, 28, 16, 8, 128, 151936, True, True)
LLAMA3_8B = Size(4096, 14336, 32, 32, 8, 128, 128256, False, False)
TINY = Size(64, 96, 1, 4, 2, 16, 300, True, True)


def spec_of(size: Size) -> ModelSpec:
    attention = Gqa(size.heads, size.kv_heads, size.width, scale=size.width**-0.5, qk_norm=size.qk_norm)
    return ModelSpec(
        architecture="random",
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        layers=(LayerSpec(attention, DenseMlp(size.inner)),) * size.layers,
        ropes={"main": RopeSpec(1e6, size.width)},
        norm_eps=1e-6,
        trained_context=40960,
        tied_embeddings=size.tied,
    )


def random_decoder(size: Size, device: str, dtype: torch.dtype, context: int, *, fp8: bool = False) -> Decoder:
    """Matrices are N(0, 1 / columns); with `fp8` those of the layers are stored in e4m3."""
    spec, dense, narrow = spec_of(size), GpuDenseLinear(), GpuRounded8(torch.float8_e4m3fn)
    rows = narrow.input_format if fp8 else dense.input_format
    total = 0

    def matrix(rows: int, columns: int, *, pack: bool = True) -> Linear:
        nonlocal total
        weight = torch.randn(rows, columns, device=device, dtype=dtype) * columns**-0.5
        total += rows * columns * (1 if fp8 and pack else weight.element_size())
        if not (fp8 and pack):
            return Linear(dense, weight, None, rows)
        scale = weight.abs().amax(1, keepdim=True).float() / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        total += 4 * rows
        return Linear(narrow, Weight8(codes, scale.t().contiguous(), None, columns, 0), None, rows)

    def norm(rows: InputFormat) -> RmsNorm:
        return RmsNorm(torch.ones(size.hidden, device=device), 1e-6, norm_for(rows))

    table = rope_table(spec.ropes["main"], context, spec.trained_context, device)
    ones = torch.ones(size.width, device=device) if size.qk_norm else None
    blocks = [
        Block(
            norm(rows),
            SelfAttention(
                AttentionLayer(index, 0, layer.attention, table.cos, table.sin, q_norm=ones, k_norm=ones),
                FusedLinear([matrix((size.heads + 2 * size.kv_heads) * size.width, size.hidden)]),
                matrix(size.hidden, size.heads * size.width),
                size.heads,
                size.kv_heads,
                size.width,
            ),
            norm(rows),
            Mlp(
                FusedLinear([matrix(2 * size.inner, size.hidden)]),
                matrix(size.hidden, size.inner),
                gate_for("silu", rows),
            ),
        )
        for index, layer in enumerate(spec.layers)
    ]
    head = matrix(size.vocab, size.hidden, pack=False)
    embedding = head.weight if size.tied else torch.randn_like(head.weight)
    total += 0 if size.tied else embedding.nbytes
    return Decoder(
        spec=spec,
        placement=whole_model(spec, device),
        dtype=dtype,
        embed=Embedding(dense, embedding, 1.0, dtype),
        blocks=blocks,
        norm=norm(dense.input_format),
        head=head,
        weight_bytes=total,
    )


def block_bytes(decoder: Decoder, kind: KVFormat, block_size: int = 16) -> int:
    """Return the bytes of a KV block over all layers."""
    layouts = (TritonAttention().kv_layout(group, kind, block_size) for group in kv_groups(decoder.spec))
    return sum(layout.bytes_per_block for layout in layouts)


def engine_of(
    decoder: Decoder,
    device: str,
    *,
    sequences: int,
    context: int,
    blocks: int,
    budget: int,
    graphs: bool = True,
    overlap: bool = True,
    kv_format: KVFormat = "bf16",
    block_size: int = 16,
) -> Engine:
    shape = EngineShape(
        max_context=context,
        max_sequences=sequences,
        token_budget=budget,
        chunk=budget,
        block_size=block_size,
        num_blocks=blocks,
        depth=2 if overlap and device.startswith("cuda") else 1,
    )
    backend, kv = TritonAttention(), PagedKV()
    layouts = [backend.kv_layout(group, kv_format, block_size) for group in kv_groups(decoder.spec)]
    kv.bind([KVGroupSize(blocks, None)], block_size, prefix_cache=False)
    on_gpu = device.startswith("cuda")
    runner = Runner(
        decoder,
        backend,
        layouts,
        shape,
        device=device,
        dtype=decoder.dtype,
        capture=graphs and on_gpu,
        triton=True,
    )
    scheduler = Scheduler(
        shape,
        kv,
        batching="continuous",
        skip_ahead=16,
        ageing_s=1e9,
        clock=time.monotonic,
        prefix_cache=False,
    )
    executor: Any = LocalExecutor(runner, depth=shape.depth)
    return Engine(scheduler, executor, None, BatchBuilder(shape, 1), vocab_size=decoder.spec.vocab_size)
