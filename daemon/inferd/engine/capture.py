"""A step recorded once and replayed with one call: the ordinary forward over fixed buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

import torch

from inferd_kernels.cpu.advance import advance
from inferd_kernels.cpu.library import NO_FILE
from inferd_kernels.cpu.linear import CpuKernel
from inferd_kernels.cpu.operators import RowInputs, choose, compact, gather
from inferd_kernels.cpu.program import Program

if TYPE_CHECKING:
    import numpy as np

    from inferd.engine.batch import Batch
    from inferd.engine.sampler import Sampler
    from inferd.engine.workspace import BucketWorkspace, StepBuffers
    from inferd.model.decoder import Decoder
    from inferd.plugin.contracts import AttentionBackend
    from inferd.plugin.types import LayerKV, StepInputs


MOST_STEPS = 16
"""Of plain decoding that one call can take."""


class Forward(NamedTuple):
    """What a step's forward leaves behind. Tensors may have more rows than the step."""

    hidden: torch.Tensor
    """[T, hidden] of the last layer; of rows that sample alone, where no prompt is reported"""
    logits: torch.Tensor
    """[R, vocab] float32; where tokens were chosen, only of rows whose logits are asked for"""
    ids: Callable[[], list[int]] | None = None
    """Waits for the chosen tokens [R], BAD_LOGITS or NO_TOKEN instead of some; None: none were chosen"""
    later: Seq[list[int]] = ()
    """The same of the steps after the first"""


def chooses_natively(decoder: Decoder) -> bool:
    """Say whether native kernels choose tokens: nothing of torch's stands between the head and the choice."""
    head = decoder.head
    return head is not None and isinstance(head.kernel, CpuKernel) and decoder.spec.logit_softcap is None


class CapturedForward:
    """The whole model as one program of native calls. Serves every step: kernels read the real counts."""

    def __init__(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        kv: Mapping[int, LayerKV],
        buffers: StepBuffers,
        workspace: BucketWorkspace,
        sampler: Sampler,
    ) -> None:
        """`sampler` has `native_rows` where `chooses_natively`."""
        self._decoder = decoder
        self.news = NO_FILE
        """Of several steps none begins while this file can be read from."""
        self._edits = sampler.native
        self._buffers = buffers
        self._program = program = Program()
        inputs = buffers.whole()
        with torch.inference_mode(), program.record():
            plan = backend.plan(inputs, workspace)
            attended, residual = decoder.attend(inputs, None, kv, backend, plan)
            with program.rows("kept"):
                kept = buffers.kept_rows
                self._hidden = decoder.finish(compact(attended, kept), compact(residual, kept))
            with program.rows("sampled"):
                picked = gather(self._hidden, buffers.sample_kept)
                self._ids = self._kept = None
                if self._edits is not None:
                    chosen = RowInputs(
                        sampler.params.choice,
                        buffers.row_slots,
                        self._edits.row_masks,
                        inputs.token_ids,
                        inputs.positions,
                        inputs.sample_rows,
                    )
                    self._logits, self._ids, self._kept = self._choose(picked, chosen, inputs)
                else:
                    self._logits = decoder.raw_logits(picked)

    @property
    def num_bytes(self) -> int:
        """Of the buffers between its calls."""
        return self._program.num_bytes

    @property
    def num_calls(self) -> int:
        return len(self._program)

    def _choose(
        self, hidden: torch.Tensor, asked: RowInputs, inputs: StepInputs
    ) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """Return logits, the tokens of one step, and those of several."""
        head, norm = self._decoder.head, self._decoder.norm
        assert head is not None
        assert norm is not None
        assert isinstance(head.kernel, CpuKernel)
        choices = choose(head.kernel, norm(hidden), head.weight, head.bias, asked)
        kept = advance(choices.ids, inputs, block_size=self._buffers.block_size, most_steps=MOST_STEPS)
        return choices.logits, choices.ids.numpy(), kept.numpy()

    def capture_ahead(self) -> Iterator[None]:
        """Nothing is left: one program serves every step."""
        return iter(())

    def __call__(self, batch: Batch) -> Forward:
        """Run the steps of a batch."""
        sizes = self._buffers.load(batch)
        if self._edits is not None:
            self._edits.load(batch)
        num_steps = batch.num_steps
        sampled = sizes.sampled
        done = self._program.run(**sizes._asdict(), steps=num_steps, news=self.news)
        if self._ids is None:
            return Forward(self._hidden, self._decoder.capped(self._logits[:sampled]))
        if num_steps == 1:
            ids = self._ids[:sampled].tolist()
            return Forward(self._hidden, self._logits, lambda: ids)
        assert self._kept is not None
        ids, *later = self._kept[:done, :sampled].tolist()
        return Forward(self._hidden, self._logits, lambda: ids, later)
