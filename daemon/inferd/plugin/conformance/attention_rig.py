"""Drive an attention backend as the engine does: a pool of blocks, ragged steps, one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from inferd.plugin.conformance.attention_oracle import Written, attended, rope_table, written
from inferd.plugin.conformance.report import NonconformanceError, Subject
from inferd.plugin.types import (
    AttentionLayer,
    Gqa,
    KVFormat,
    KVGroup,
    KVLayout,
    KVPlane,
    Qkv,
    StepCounts,
    StepInputs,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STORAGE = {**DTYPES, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
TOLERANCE = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 3e-2, "int8": 6e-2, "fp8": 1.5e-1}
"""Largest error allowed, times the largest value of the oracle's output."""


class Turn(NamedTuple):
    """One sequence in a step: how many of its next tokens run."""

    seq: int
    tokens: int
    verify: bool = False


class Scratch:
    """A `Workspace` of ordinary tensors."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        found = self._buffers.get(name)
        if found is None or found.dtype != dtype or any(a < b for a, b in zip(found.shape, shape, strict=True)):
            found = self._buffers[name] = torch.empty(shape, dtype=dtype, device=self._device)
        return found[tuple(slice(0, n) for n in shape)]


def gqa(subject: Subject, heads: int = 4, kv_heads: int = 2, **changes: Any) -> Gqa:
    """Return a layer of a head width that the plugin supports."""
    width = min(subject.spec.capabilities.head_dims, default=16)
    spec = Gqa(heads=heads, kv_heads=kv_heads, head_dim=width, scale=width**-0.5)
    return replace(spec, **changes)


class Rig:
    """One attention layer over sequences of random projections, of `lengths` tokens in all."""

    def __init__(
        self,
        subject: Subject,
        spec: Gqa,
        lengths: Sequence[int],
        *,
        seed: int = 0,
        format: KVFormat | None = None,
        poison: float = 3.0,
        rope_dim: int | None = None,
        scattered: bool = True,
    ) -> None:
        can = subject.spec.capabilities
        self.dtype_name = "fp32" if not can.dtypes or "fp32" in can.dtypes else min(can.dtypes)
        default: Any = (
            self.dtype_name if not can.kv_formats or self.dtype_name in can.kv_formats else min(can.kv_formats)
        )
        self.format: KVFormat = format or default
        self.device = subject.device
        self.backend = subject.make()
        self.spec = spec
        self.lengths = tuple(lengths)
        self.done = [0] * len(lengths)
        generator = torch.Generator().manual_seed(seed)
        self.x = [self._projections(n, generator) for n in lengths]
        self.layer = self._layer(generator, max(lengths), spec.head_dim if rope_dim is None else rope_dim)
        self.layout = self._layout()
        self.scratch = Scratch(self.device)
        self._tables(generator, scattered)
        self.kv = {plane.name: self._plane(plane, self.format, poison) for plane in self.layout.group.planes}
        self.kv |= {plane.name: self._plane(plane, "fp32", poison) for plane in self.layout.scales}

    def _projections(self, length: int, generator: torch.Generator) -> Qkv:
        def draw(heads: int) -> torch.Tensor:
            x = torch.randn(length, heads, self.spec.head_dim, generator=generator)
            return x.to(DTYPES[self.dtype_name]).to(self.device)

        return Qkv(draw(self.spec.heads), draw(self.spec.kv_heads), draw(self.spec.kv_heads))

    def _layer(self, generator: torch.Generator, length: int, rope_dim: int) -> AttentionLayer:
        def weight(size: int) -> torch.Tensor:
            return (torch.rand(size, generator=generator) + 0.5).to(self.device)

        cos, sin = rope_table(length, rope_dim, 100.0) if self.spec.rope else (None, None)
        return AttentionLayer(
            index=0,
            group=0,
            spec=self.spec,
            cos=None if cos is None else cos.to(self.device),
            sin=None if sin is None else sin.to(self.device),
            q_norm=weight(self.spec.head_dim) if self.spec.qk_norm else None,
            k_norm=weight(self.spec.head_dim) if self.spec.qk_norm else None,
            sinks=weight(self.spec.heads) if self.spec.sinks else None,
        )

    def _layout(self) -> KVLayout:
        """Use the smallest block size that the backend takes."""
        planes = tuple(KVPlane(name, self.spec.kv_heads, self.spec.head_dim) for name in ("k", "v"))
        group = KVGroup(layers=(0,), planes=planes, window=self.spec.window)
        for block_size in (4, 8, 16, 32, 64, 128, 256):
            try:
                return self.backend.kv_layout(group, self.format, block_size)
            except ValueError as error:
                refused = error
        raise NonconformanceError(f"kv_layout takes no block size for format {self.format}: {refused}")

    def _tables(self, generator: torch.Generator, scattered: bool) -> None:
        counts = [-(-n // self.layout.block_size) for n in self.lengths]
        self.num_blocks = sum(counts) + 3
        ids = torch.randperm(self.num_blocks, generator=generator) if scattered else torch.arange(self.num_blocks)
        # Handed out round robin, so that the blocks of different sequences lie among each other.
        self.tables: list[list[int]] = [[] for _ in counts]
        pool = ids.tolist()
        while any(len(t) < n for t, n in zip(self.tables, counts, strict=True)):
            for table, count in zip(self.tables, counts, strict=True):
                if len(table) < count:
                    table.append(pool.pop())

    def _plane(self, plane: KVPlane, format: KVFormat, poison: float) -> torch.Tensor:
        apart = 2 if self.layout.by_block else 1
        shape = (self.num_blocks * apart, self.layout.block_size, plane.heads, plane.width)
        if format == "int8":
            return torch.full(shape, 127, dtype=torch.int8, device=self.device)[::apart]
        return torch.full(shape, poison, device=self.device).to(STORAGE[format])[::apart]

    def give_back(self, seq: int, count: int) -> None:
        """Let go of a sequence's first blocks; what they then hold, and what the table says, is arbitrary."""
        for block in self.tables[seq][:count]:
            for plane in self.kv.values():
                plane[block] = 127 if plane.dtype == torch.int8 else float("nan")
        self.tables[seq][:count] = [0] * count

    def slot(self, seq: int, position: int) -> int:
        """Return the flat slot of a token."""
        size = self.layout.block_size
        return self.tables[seq][position // size] * size + position % size

    def inputs(self, turns: Sequence[Turn]) -> StepInputs:
        """Lay out one step; `turns` come in the order decode, verify, prefill."""
        spans = [range(self.done[t.seq], self.done[t.seq] + t.tokens) for t in turns]
        longest = max(len(self.tables[t.seq]) for t in turns)
        offsets = [0]
        for turn in turns:
            offsets.append(offsets[-1] + turn.tokens)
        contexts = [span.stop for span in spans]
        return StepInputs(
            token_ids=self._ints([0] * offsets[-1], torch.int32),
            positions=self._ints([p for span in spans for p in span], torch.int64),
            cu_seqlens=self._ints(offsets, torch.int32),
            context_lens=self._ints(contexts, torch.int32),
            block_tables=self._ints([self._padded(t.seq, longest) for t in turns], torch.int32)[None],
            slots=self._ints(
                [self.slot(t.seq, p) for t, span in zip(turns, spans, strict=True) for p in span], torch.int64
            )[None],
            sample_rows=self._ints([o - 1 for o in offsets[1:]], torch.int32),
            query_lens=[t.tokens for t in turns],
            context_lens_host=contexts,
            counts=self._counts(turns),
        )

    def _counts(self, turns: Sequence[Turn]) -> StepCounts:
        decode = sum(t.tokens == 1 and self.done[t.seq] > 0 and not t.verify for t in turns)
        verify = sum(t.verify for t in turns)
        return StepCounts(decode, verify, len(turns) - decode - verify)

    def _padded(self, seq: int, length: int) -> list[int]:
        return self.tables[seq] + [0] * (length - len(self.tables[seq]))

    def _ints(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def step(self, *turns: Turn) -> list[torch.Tensor]:
        """Run one step and return each sequence's output [tokens, heads, head_dim]."""
        inputs = self.inputs(turns)
        parts = [[p[self.done[t.seq] : self.done[t.seq] + t.tokens] for p in self.x[t.seq]] for t in turns]
        x = Qkv(*(torch.cat(planes) for planes in zip(*parts, strict=True)))
        self.handed = x
        plan = self.backend.plan(inputs, self.scratch)
        q = self.backend.write(self.layer, x, self.kv, plan, inputs)
        out = self.backend.attend(self.layer, q, self.kv, plan)
        if tuple(out.shape) != tuple(x.q.shape):
            raise NonconformanceError(f"attend returned shape {tuple(out.shape)} for q {tuple(x.q.shape)}")
        for turn in turns:
            self.done[turn.seq] += turn.tokens
        return list(out.split([t.tokens for t in turns]))

    def written(self, seq: int) -> Written:
        """What the oracle says the cache holds for a sequence."""
        return written(self._host_layer(), Qkv(*(p.cpu() for p in self.x[seq])))

    def expected(self, seq: int) -> torch.Tensor:
        """The oracle's output for every position of a sequence."""
        layer = self._host_layer()
        return attended(layer, self.spec, written(layer, Qkv(*(p.cpu() for p in self.x[seq]))))

    def _host_layer(self) -> AttentionLayer:
        names = ("cos", "sin", "q_norm", "k_norm", "sinks")
        tensors = {n: getattr(self.layer, n) for n in names}
        return replace(self.layer, **{n: None if t is None else t.cpu() for n, t in tensors.items()})

    def compare(self, seq: int, start: int, got: torch.Tensor) -> None:
        """Compare outputs of positions `start`... with the oracle. Raises NonconformanceError."""
        want = self.expected(seq)[start : start + len(got)]
        close(got, want, self.format, f"sequence {seq}, positions {start} to {start + len(got) - 1}")

    def run(self, *steps: Sequence[Turn]) -> None:
        """Run steps and compare every output with the oracle."""
        for turns in steps:
            starts = [self.done[t.seq] for t in turns]
            for turn, start, out in zip(turns, starts, self.step(*turns), strict=True):
                self.compare(turn.seq, start, out)


def close(got: torch.Tensor, want: torch.Tensor, format: str, where: str) -> None:
    """Require `got` to equal the oracle's `want` within the tolerance of `format`."""
    got = got.cpu().double()
    if not torch.isfinite(got).all():
        raise NonconformanceError(f"{where}: output is not finite")
    error, bound = float((got - want).abs().max()), TOLERANCE[format] * float(want.abs().max())
    if error > bound:
        raise NonconformanceError(f"{where}: error {error:.2e} exceeds {bound:.2e}")
