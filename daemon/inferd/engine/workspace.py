"""Scratch and input memory whose addresses do not change between steps of one shape bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferd.plugin.types import StepInputs

if TYPE_CHECKING:
    from inferd.engine.batch import Batch
    from inferd.engine.shape import EngineShape


class BucketWorkspace:
    """Named buffers per bucket. A bucket that was sealed (captured) may not grow any more."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._bucket = 0
        self._sealed: set[int] = set()
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}

    def enter(self, bucket: int) -> None:
        """Hand out the buffers of this bucket from now on; 0 is the one of eager steps."""
        self._bucket = bucket

    def seal(self) -> None:
        """Fix every address of the current bucket: a capture now refers to them."""
        self._sealed.add(self._bucket)

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a view of this shape on the buffer of this name. Raises ValueError past a sealed size."""
        key = (self._bucket, name)
        size = int(np.prod(shape))
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size or buffer.dtype != dtype:
            if self._bucket in self._sealed:
                raise ValueError(f"workspace {name!r}: {shape} {dtype} asked of sealed bucket {self._bucket}")
            buffer = self._buffers[key] = torch.empty(size, dtype=dtype, device=self.device)
        return buffer[:size].view(shape)


class StepSizes(NamedTuple):
    tokens: int
    sequences: int
    sampled: int
    kept: int


class StepBuffers:
    """The fixed buffers behind `StepInputs`, filled from a `Batch` before the forward runs."""

    def __init__(self, shape: EngineShape, num_groups: int, device: str) -> None:
        tokens = max(shape.token_budget, shape.max_sequences * (1 + shape.max_draft))
        sequences = shape.max_sequences
        sampled = min(tokens, sequences * (1 + shape.max_draft))

        def buffer(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.block_size = shape.block_size
        self._token_ids = buffer(tokens)
        self._positions = buffer(tokens, dtype=torch.int64)
        self._cu_seqlens = buffer(sequences + 1)
        self._context_lens = buffer(sequences)
        self._block_tables = buffer(num_groups, sequences, shape.max_blocks)
        self._slots = buffer(num_groups, tokens, dtype=torch.int64)
        self._sample_rows = buffer(sampled)
        self.row_slots = buffer(sampled)
        """Executor slot of each row that samples."""
        self.kept_rows = buffer(tokens)
        """Rows that a program finishes: those that sample, or all where a prompt is reported."""
        self.sample_kept = buffer(sampled)
        """Which of the kept rows sample."""
        self._host = _Host(self) if device == "cpu" else None

    @property
    def most_sampled(self) -> int:
        """Rows that a step can sample at most."""
        return len(self._sample_rows)

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in vars(self).values() if isinstance(buffer, torch.Tensor))

    def whole(self) -> StepInputs:
        """Return the buffers at their full sizes, for recording."""
        return StepInputs(
            token_ids=self._token_ids,
            positions=self._positions,
            cu_seqlens=self._cu_seqlens,
            context_lens=self._context_lens,
            block_tables=self._block_tables,
            slots=self._slots,
            sample_rows=self._sample_rows,
        )

    def load(self, batch: Batch) -> StepSizes:
        """Copy one step in, on the CPU, for a program that reads the buffers at their addresses.

        Raises ValueError when it does not fit.
        """
        assert self._host is not None
        return self._host.load(batch)

    def fill(self, batch: Batch) -> StepInputs:
        """Copy one step in and return views of its real sizes."""
        query_lens = np.diff(batch.cu_seqlens)
        return StepInputs(
            token_ids=_put(self._token_ids, batch.token_ids),
            positions=_put(self._positions, batch.positions),
            cu_seqlens=_put(self._cu_seqlens, batch.cu_seqlens),
            context_lens=_put(self._context_lens, batch.context_lens),
            block_tables=_put(self._block_tables, batch.block_tables),
            slots=_put(self._slots, batch.slots),
            sample_rows=_put(self._sample_rows, batch.sample_rows),
            query_lens=query_lens.tolist(),
            context_lens_host=batch.context_lens.tolist(),
            counts=batch.counts,
        )


class _Host:
    """The buffers as numpy sees them: a copy into them is a memcpy, without a tensor made on the way."""

    __slots__ = (
        "arange",
        "block_tables",
        "context_lens",
        "cu_seqlens",
        "kept_rows",
        "positions",
        "row_slots",
        "sample_kept",
        "sample_rows",
        "slots",
        "tokens",
    )

    def __init__(self, buffers: StepBuffers) -> None:
        whole = buffers.whole()
        self.tokens = whole.token_ids.numpy()
        self.positions = whole.positions.numpy()
        self.cu_seqlens = whole.cu_seqlens.numpy()
        self.context_lens = whole.context_lens.numpy()
        self.block_tables = whole.block_tables.numpy()
        self.slots = whole.slots.numpy()
        self.sample_rows = whole.sample_rows.numpy()
        self.arange = np.arange(len(self.tokens), dtype=np.int32)
        self.row_slots = buffers.row_slots.numpy()
        self.kept_rows = buffers.kept_rows.numpy()
        self.sample_kept = buffers.sample_kept.numpy()

    def load(self, batch: Batch) -> StepSizes:
        tokens, sequences, sampled = len(batch.token_ids), len(batch.context_lens), len(batch.sample_rows)
        if tokens > len(self.tokens) or sequences > len(self.context_lens) or sampled > len(self.sample_rows):
            raise ValueError(
                f"step of {tokens} tokens, {sequences} sequences, {sampled} sampled rows does not fit buffers of "
                f"{len(self.tokens)}, {len(self.context_lens)}, {len(self.sample_rows)}"
            )
        self.tokens[:tokens] = batch.token_ids
        self.positions[:tokens] = batch.positions
        self.cu_seqlens[: sequences + 1] = batch.cu_seqlens
        self.context_lens[:sequences] = batch.context_lens
        self.block_tables[:, :sequences, : batch.block_tables.shape[2]] = batch.block_tables
        self.slots[:, :tokens] = batch.slots
        if sampled:
            self.sample_rows[:sampled] = batch.sample_rows
            self.row_slots[:sampled] = batch.row_slots
        if batch.prompt_rows:
            self.kept_rows[:tokens] = self.arange[:tokens]
            self.sample_kept[:sampled] = batch.sample_rows
            return StepSizes(tokens, sequences, sampled, tokens)
        self.kept_rows[:sampled] = batch.sample_rows
        self.sample_kept[:sampled] = self.arange[:sampled]
        return StepSizes(tokens, sequences, sampled, sampled)


def _put(buffer: torch.Tensor, values: np.ndarray) -> torch.Tensor:
    """Copy `values` to the start of each dimension of `buffer`. Raises ValueError when they do not fit."""
    if any(have < want for have, want in zip(buffer.shape, values.shape, strict=True)):
        raise ValueError(f"step of {values.shape} does not fit buffers of {tuple(buffer.shape)}")
    view = buffer[tuple(slice(0, n) for n in values.shape)]
    return view.copy_(torch.from_numpy(values))
