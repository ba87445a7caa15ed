"""Run one step where the model is: inputs, forward, sampling, acceptance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import torch

from inferd.engine.batch import RowOutput, StepOutput
from inferd.engine.capture import MOST_STEPS, CapturedForward, Forward, chooses_natively
from inferd.engine.device import device_memory
from inferd.engine.kvcache import allocate
from inferd.engine.sampler import Sampler
from inferd.engine.sampler.logprobs import token_logprobs
from inferd.engine.sampler.rows import accepted, sample_rows
from inferd.engine.workspace import BucketWorkspace, StepBuffers
from inferd.link import DeviceUse
from inferd_kernels.available import runs_on_triton

if TYPE_CHECKING:
    from inferd.engine.batch import Batch
    from inferd.engine.cuda_graphs import GraphForward
    from inferd.engine.sampler.rows import SampleRows
    from inferd.engine.sampler.sampler import Sampled
    from inferd.engine.shape import EngineShape
    from inferd.model.decoder import Decoder
    from inferd.plugin.contracts import AttentionBackend, ParallelStrategy
    from inferd.plugin.types import KVLayout, RankPlacement, StepInputs
    from inferd_client.protocol import TokenLogprob

Pending = Callable[[], StepOutput]
"""Waits for the output of a step that was started."""

LOGIT_VALUES = 1 << 23
"""Most logits held at once for prompt log-probabilities."""


class Runner:
    """One rank's share of the model with its KV pool and, where the model ends, the sampler."""

    def __init__(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        layouts: Sequence[KVLayout],
        shape: EngineShape,
        *,
        device: str,
        dtype: torch.dtype,
        strategy: ParallelStrategy | None = None,
        placement: RankPlacement | None = None,
        capture: bool = False,
        triton: bool = False,
        eager_bytes: int = 0,
    ) -> None:
        """With `capture` the step is recorded, or its graphs are captured; every part must be capture-safe.

        `triton` runs it as on a GPU in Triton's interpreter. Graphs leave `eager_bytes` of a GPU to other steps.
        """
        self.decoder = decoder
        self.shape = shape
        self.kv = allocate(layouts, shape.num_blocks, device, decoder.placement.layers)
        self._backend = backend
        self._device = device
        self._dtype = dtype
        self._strategy = strategy
        self._placement = placement or decoder.placement
        self._workspace = BucketWorkspace(device)
        self._buffers = StepBuffers(shape, len(layouts), device)
        native = capture and not device.startswith("cuda") and chooses_natively(decoder)
        native_rows = self._buffers.most_sampled if native else 0
        self._sampler = Sampler(decoder.spec.vocab_size, shape.max_sequences, device, native_rows=native_rows)
        self.most_steps = MOST_STEPS if native else 1
        """Steps of plain decoding that a batch may ask for."""
        self._captured: CapturedForward | GraphForward | None = None
        self._queued = False
        """The forward returns before the device is done, and passes tokens on to the next step there."""
        self._last = np.zeros(shape.max_sequences, np.int32) if shape.depth > 1 else None
        """By slot: the token it got last, where the host passes tokens on."""
        self._awaited = 0.0
        """When the last step was known to be done."""
        whole = self._placement.embeds and self._placement.samples
        if whole and runs_on_triton(device, asked=triton):
            from inferd.engine.cuda_graphs import graph_forward

            self._captured = graph_forward(
                decoder,
                backend,
                self.kv,
                self._workspace,
                self._sampler.params.choice,
                shape,
                len(layouts),
                device=device,
                graphs=capture,
                eager_bytes=eager_bytes,
            )
            self._queued, self._last = True, None
        elif capture:
            self._captured = CapturedForward(decoder, backend, self.kv, self._buffers, self._workspace, self._sampler)
        self._prompts: dict[int, list[int]] = {}
        """By slot, of sequences that want prompt log-probabilities."""

    def step(self, batch: Batch) -> StepOutput | None:
        """Run one step; None on a rank that does not sample."""
        started = self.start(batch)
        return started() if started is not None else None

    def start(self, batch: Batch) -> Pending | None:
        """Start one step, and return what waits for its output; None on a rank that does not sample.

        The arrays of `batch` are read before this returns. Steps are awaited in their order, `depth` may be in flight.
        """
        started = time.perf_counter()
        self._enter_and_leave(batch)
        self._fill_in(batch)
        forward = self._captured(batch) if self._captured else self._eager(batch)
        if forward is None:
            return None
        if self._queued and self._is_plain(batch, forward):
            positions = batch.positions[batch.sample_rows] + 1
            return lambda: self._await(forward, positions, started)
        output = self._finish(batch, forward, started)
        self._keep(batch, output)
        return lambda: output

    def _is_plain(self, batch: Batch, forward: Forward) -> bool:
        """Say whether every row is one chosen token and nobody asks for more."""
        if forward.ids is None or batch.counts.verify or batch.prompt_rows:
            return False
        asking = self._sampler.host_slots
        return not asking or asking.isdisjoint(batch.row_slots.tolist())

    def _await(self, forward: Forward, positions: np.ndarray, started: float) -> StepOutput:
        """Wait for the tokens of a step; its time is what the device had for it alone."""
        assert forward.ids is not None
        ids = forward.ids()
        now = time.perf_counter()
        elapsed, self._awaited = now - max(started, self._awaited), now
        rows = [RowOutput((token,)) for token in ids]
        for row in [row for row, token in enumerate(ids) if token < 0]:
            rows[row] = RowOutput((), error=_error(int(positions[row]), bad=True))
        return StepOutput(rows, {}, elapsed)

    def _finish(self, batch: Batch, forward: Forward, started: float) -> StepOutput:
        """Choose tokens and report what is asked for, on the host."""
        rows: list[RowOutput] | None = None
        if self._is_plain(batch, forward):
            assert forward.ids is not None
            ids = forward.ids()
            rows = None if ids and min(ids) < 0 else _tokens(ids, forward.later)
        prompts: dict[int, list[TokenLogprob]] = {}
        if rows is None:
            with torch.inference_mode():
                rows = self._choose(batch, forward)
                prompts = {b: self._prompt_logprobs(batch, forward.hidden, b, top) for b, top in batch.prompt_rows}
        self._awaited = now = time.perf_counter()
        return StepOutput(rows, prompts, now - started, 1 + len(forward.later))

    def _fill_in(self, batch: Batch) -> None:
        """Put the tokens in that were not known when the step was planned, where the host knows them."""
        if self._last is not None:
            unknown = np.flatnonzero(batch.token_ids < 0)
            batch.token_ids[unknown] = self._last[~batch.token_ids[unknown]]

    def _keep(self, batch: Batch, output: StepOutput) -> None:
        """Remember what each slot got, for a step that was planned before."""
        if self._last is not None:
            slots = batch.seq_slots[batch.sampling_seqs]
            self._last[slots] = [row.ids[-1] if row.ids else 0 for row in output.rows]

    def watch(self, file: int) -> None:
        """Let no further step of a batch begin while this file can be read from."""
        if isinstance(self._captured, CapturedForward):
            self._captured.news = file

    def prepare(self) -> Iterator[None]:
        """Capture ahead what steps would be captured for when they first come."""
        return self._captured.capture_ahead() if self._captured is not None else iter(())

    def use(self) -> DeviceUse:
        """Tell the scratch of steps: kept buffers, and on a GPU all that torch holds beside weights and KV."""
        memory = device_memory(self._device)
        if memory.reserved is not None:
            pool = sum(plane.nbytes for planes in self.kv.values() for plane in planes.values())
            scratch = max(0, memory.reserved - self.decoder.weight_bytes - pool)
        else:
            recorded = self._captured.num_bytes if self._captured is not None else 0
            scratch = self._workspace.num_bytes + self._buffers.num_bytes + recorded
        return DeviceUse(activation_bytes=scratch, total_bytes=memory.total, free_bytes=memory.free)

    @torch.inference_mode()
    def _eager(self, batch: Batch) -> Forward | None:
        """Run the model call by call; None on a rank that hands its hidden state on."""
        inputs = self._buffers.fill(batch)
        plan = self._backend.plan(inputs, self._workspace)
        hidden = self.decoder.forward(inputs, self._received(inputs), self.kv, self._backend, plan)
        if self._placement.samples:
            return Forward(hidden, self.decoder.logits(hidden.index_select(0, inputs.sample_rows)))
        assert self._strategy is not None
        self._strategy.send(hidden, self._placement.rank + 1)
        return None

    def _received(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return the hidden state of the rank before; None on the first."""
        if self._placement.embeds:
            return None
        assert self._strategy is not None
        shape = (len(inputs.token_ids), self.decoder.spec.hidden_size)
        return self._strategy.recv(self._workspace.take("hidden", shape, self._dtype), self._placement.rank - 1)

    def _enter_and_leave(self, batch: Batch) -> None:
        for slot in batch.leave:
            self._sampler.leave(slot)
            self._prompts.pop(slot, None)
        for init in batch.enter:
            self._sampler.enter(init)
            if init.sampling.prompt_logprobs is not None:
                self._prompts[init.slot] = init.tokens[: init.num_prompt]
        if len(batch.masked_rows):
            self._sampler.watch(batch.row_slots[batch.masked_rows].tolist())

    def _choose(self, batch: Batch, forward: Forward) -> list[RowOutput]:
        rows = sample_rows(batch)
        if not rows.num_seqs:
            return []
        chosen = forward.ids() if forward.ids is not None else None
        sampled = self._sampler.sample(forward.logits, rows, chosen)
        return [self._output(i, rows, sampled, forward.logits) for i in range(rows.num_seqs)]

    def _output(self, sequence: int, rows: SampleRows, sampled: Sampled, logits: torch.Tensor) -> RowOutput:
        """Accept drafts of one sequence and report what it got."""
        first, end = int(rows.offsets[sequence]), int(rows.offsets[sequence + 1])
        count = accepted(rows.drafts[sequence], sampled.ids[first:end]) + 1
        for row in range(first, first + count):
            if sampled.bad[row] or sampled.empty[row]:
                count = row - first
                break
        if not count:
            return RowOutput(ids=(), error=_error(int(rows.positions[first]), bad=sampled.bad[first]))
        slot = int(rows.slots[first])
        ids = sampled.ids[first : first + count]
        self._sampler.accept(slot, ids)
        return RowOutput(ids, self._logprobs(slot, ids, logits, first))

    def _logprobs(self, slot: int, ids: list[int], logits: torch.Tensor, first: int) -> list[TokenLogprob] | None:
        """Report the tokens of rows from `first` on, where the sequence asks for it."""
        top = int(self._sampler.params.logprobs[slot])
        return None if top < 0 else token_logprobs(logits[first : first + len(ids)], ids, [top] * len(ids))

    def _prompt_logprobs(self, batch: Batch, hidden: torch.Tensor, b: int, top: int) -> list[TokenLogprob]:
        """Report the prompt tokens that follow each row of this chunk, a few rows at a time."""
        first, end = int(batch.cu_seqlens[b]), int(batch.cu_seqlens[b + 1])
        position = int(batch.positions[first])
        tokens = self._prompts[int(batch.seq_slots[b])][position + 1 : position + 1 + end - first]
        step = max(1, LOGIT_VALUES // self.decoder.spec.vocab_size)
        out: list[TokenLogprob] = []
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            logits = self.decoder.logits(hidden[first + start : first + start + len(part)])
            out += token_logprobs(logits, part, [top] * len(part))
        return out


def _tokens(ids: Sequence[int], later: Sequence[Sequence[int]]) -> list[RowOutput]:
    """Return what each row got in one step or several, up to the first that could not be chosen: it is tried again."""
    if not later:
        return [RowOutput((token,)) for token in ids]
    return [RowOutput(tuple(takewhile(lambda token: token >= 0, row))) for row in zip(ids, *later, strict=True)]


def _error(position: int, *, bad: bool) -> str:
    if bad:
        return f"the model gave no finite logits at position {position}"
    return f"no token is left at position {position}: allowed_token_ids, bad_words, min_tokens or a grammar exclude all"
