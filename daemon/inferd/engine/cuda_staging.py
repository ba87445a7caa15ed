"""The inputs of a step on a GPU: pinned buffers on the host, one on the device, one copy a step between them.

All hold the same fields at the same places, padded to the engine's sizes, so graphs can refer to the device's
addresses. Rows past the step are filled so that kernels do nothing for them: slot -1, context 0, no query rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from inferd.plugin.types import StepCounts, StepInputs
from inferd_kernels.reference.noise import row_keys
from inferd_kernels.triton.sampler import RowParams

if TYPE_CHECKING:
    from inferd.engine.batch import Batch
    from inferd.engine.cuda_buckets import Bucket
    from inferd.engine.shape import EngineShape

ALIGN = 256
"""Bytes; vector loads of the kernels need 16."""


class PinnedInputs:
    """Fixed input buffers of all steps on one device.

    Steps in flight have a host buffer each: the device may read one late.
    """

    def __init__(self, shape: EngineShape, num_groups: int, device: str) -> None:
        self.max_tokens = max(shape.token_budget, shape.max_sequences * (1 + shape.max_draft))
        sequences = shape.max_sequences
        sampled = min(self.max_tokens, sequences * (1 + shape.max_draft))
        fields: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "positions": ((self.max_tokens,), torch.int64),
            "slots": ((num_groups, self.max_tokens), torch.int64),
            "token_ids": ((self.max_tokens,), torch.int32),
            "cu_seqlens": ((sequences + 1,), torch.int32),
            "context_lens": ((sequences,), torch.int32),
            "row_slots": ((sampled,), torch.int64),
            "sample_rows": ((sampled,), torch.int32),
            "temperature": ((sampled,), torch.float32),
            "top_k": ((sampled,), torch.int32),
            "top_p": ((sampled,), torch.float32),
            "log_min_p": ((sampled,), torch.float32),
            "keys": ((sampled, 2), torch.int32),
            "block_tables": ((num_groups, sequences, shape.max_blocks), torch.int32),  # the largest by far
        }
        size = sum(_padded(math.prod(dims) * dtype.itemsize) for dims, dtype in fields.values())
        pinned = device.startswith("cuda")
        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(shape.depth)]
        self._host_fields = [
            {name: view.numpy() for name, view in _split(host, fields).items()} for host in self._hosts
        ]
        self._turn = 0
        self._padding_slot = sequences
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._d = _split(self._device, fields)
        tables = self._d["block_tables"]
        self._tables_start = tables.data_ptr() - self._device.data_ptr()
        self._table_bytes = tables[0, 0].nbytes if num_groups == 1 else 0
        """Of a sequence, where the tables of a step's sequences lie side by side."""

    @property
    def max_rows(self) -> int:
        """Most rows that sample in one step."""
        return len(self._d["sample_rows"])

    @property
    def num_bytes(self) -> int:
        """Of the device."""
        return self._device.nbytes

    def load(self, batch: Batch, choice: np.ndarray, bucket: Bucket | None = None) -> None:
        """Copy one step to the device, padded to `bucket`. Raises ValueError when it does not fit.

        `choice` holds the SLOT_CHOICE record of each executor slot.
        """
        self._turn = (self._turn + 1) % len(self._hosts)
        h, tokens, sequences = self._host_fields[self._turn], batch.num_tokens, batch.num_seqs
        rows = len(batch.sample_rows)
        room = (self.max_tokens, len(h["context_lens"]), len(h["sample_rows"]))
        if tokens > room[0] or sequences > room[1] or rows > room[2]:
            raise ValueError(f"step of {(tokens, sequences, rows)} tokens, sequences, sampled rows; room for {room}")
        end_tokens, end_sequences = (bucket.tokens, bucket.sequences) if bucket else (tokens, sequences)
        _fill(h["token_ids"], batch.token_ids, end_tokens, 0)
        _fill(h["positions"], batch.positions, end_tokens, 0)
        h["slots"][:, :tokens] = batch.slots
        h["slots"][:, tokens:end_tokens] = -1
        _fill(h["cu_seqlens"], batch.cu_seqlens, end_sequences + 1, tokens)
        _fill(h["context_lens"], batch.context_lens, end_sequences, 0)
        h["block_tables"][:, :sequences, : batch.block_tables.shape[2]] = batch.block_tables
        if rows or bucket:
            self._load_rows(h, batch, choice, end_tokens if bucket else rows)
        used = self._tables_start + self._table_bytes * sequences if self._table_bytes else self.num_bytes
        self._device[:used].copy_(self._hosts[self._turn][:used], non_blocking=True)

    def clear(self, bucket: Bucket) -> None:
        """Load a step of padding only. No other may be in flight."""
        h = self._host_fields[self._turn]
        for name in ("token_ids", "positions", "cu_seqlens", "context_lens", "sample_rows", "temperature", "top_k"):
            h[name][...] = 0
        h["slots"][:, : bucket.tokens] = -1
        h["row_slots"][...] = self._padding_slot
        self._device.copy_(self._hosts[self._turn], non_blocking=True)

    def _load_rows(self, h: dict[str, np.ndarray], batch: Batch, choice: np.ndarray, end: int) -> None:
        row_slots = batch.row_slots
        picked = choice[row_slots]
        _fill(h["sample_rows"], batch.sample_rows, end, 0)
        _fill(h["row_slots"], row_slots, end, self._padding_slot)
        for name in ("temperature", "top_k", "top_p", "log_min_p"):
            _fill(h[name], picked[name], end, 0)
        positions = batch.positions[batch.sample_rows].astype(np.int64) + 1
        h["keys"][: len(picked)] = row_keys(picked["seed"], positions)

    def inputs(self, batch: Batch) -> StepInputs:
        """Return views of a step's real sizes."""
        width = batch.block_tables.shape[2]
        views = self._views(batch.num_tokens, batch.num_seqs, len(batch.sample_rows), width)
        views.query_lens = np.diff(batch.cu_seqlens).tolist()
        views.context_lens_host = batch.context_lens.tolist()
        views.counts = batch.counts
        return views

    def bucket_inputs(self, bucket: Bucket) -> StepInputs:
        """Return views of a bucket's sizes: every sequence counts as having all its rows and the longest context."""
        width = self._d["block_tables"].shape[2]
        views = self._views(bucket.tokens, bucket.sequences, bucket.tokens, width)
        views.query_lens = [bucket.rows] * bucket.sequences
        verify = bucket.sequences if bucket.rows > 1 else 0
        views.counts = StepCounts(bucket.sequences - verify, verify, 0)
        return views

    def row_params(self, num_rows: int) -> RowParams:
        """Return what choosing tokens takes, for the sampling rows."""
        return RowParams(*(self._d[name][:num_rows] for name in RowParams._fields))

    def row_slots(self, num_rows: int) -> torch.Tensor:
        """Return the executor slot of each sampling row [R] int64; those of padding have one that nobody has."""
        return self._d["row_slots"][:num_rows]

    def _views(self, tokens: int, sequences: int, rows: int, width: int) -> StepInputs:
        d = self._d
        return StepInputs(
            token_ids=d["token_ids"][:tokens],
            positions=d["positions"][:tokens],
            cu_seqlens=d["cu_seqlens"][: sequences + 1],
            context_lens=d["context_lens"][:sequences],
            block_tables=d["block_tables"][:, :sequences, :width],
            slots=d["slots"][:, :tokens],
            sample_rows=d["sample_rows"][:rows],
        )


def _split(buffer: torch.Tensor, fields: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, torch.Tensor]:
    """Return the fields as views of a buffer of bytes."""
    views: dict[str, torch.Tensor] = {}
    start = 0
    for name, (dims, dtype) in fields.items():
        end = start + math.prod(dims) * dtype.itemsize
        views[name] = buffer[start:end].view(dtype).view(dims)
        start += _padded(end - start)
    return views


def _fill(buffer: np.ndarray, values: np.ndarray, end: int, padding: int) -> None:
    """Put `values` at the start of `buffer` and `padding` from there to `end`."""
    buffer[: len(values)] = values
    buffer[len(values) : end] = padding


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
