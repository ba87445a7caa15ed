"""A step recorded once and replayed with one call: the ordinary forward over fixed buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.operators import argmax, gather
from inferd_kernels.cpu.program import Program

if TYPE_CHECKING:
    from inferd.engine.workspace import BucketWorkspace, StepBuffers
    from inferd.model.decoder import Decoder
    from inferd.plugin.contracts import AttentionBackend
    from inferd.plugin.types import LayerKV, StepInputs


class Forward(NamedTuple):
    """What a step's forward leaves behind."""

    hidden: torch.Tensor  # [T, hidden] of the last layer
    logits: torch.Tensor  # [R, vocab] float32
    peaks: torch.Tensor | None = None  # [R] largest logit
    tops: torch.Tensor | None = None  # [R] its lowest token id, int64


class CapturedForward:
    """The whole model as one program of native calls. Serves every step: kernels read the real counts."""

    def __init__(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        kv: Mapping[int, LayerKV],
        buffers: StepBuffers,
        workspace: BucketWorkspace,
    ) -> None:
        self._decoder = decoder
        for planes in kv.values():
            for plane in planes.values():
                load().advise(plane.data_ptr(), plane.nbytes)
        self._program = program = Program()
        inputs = buffers.whole()
        with torch.inference_mode(), program.record():
            plan = backend.plan(inputs, workspace)
            self._hidden = decoder.forward(inputs, None, kv, backend, plan)
            with program.rows("sampled"):
                picked = gather(self._hidden, inputs.sample_rows)
                self._logits = decoder.raw_logits(picked)
                self._peaks, self._tops = argmax(self._logits)

    @property
    def num_calls(self) -> int:
        return len(self._program)

    def __call__(self, inputs: StepInputs) -> Forward:
        tokens, sampled = inputs.token_ids.shape[0], inputs.sample_rows.shape[0]
        self._program.run(tokens=tokens, sequences=inputs.context_lens.shape[0], sampled=sampled)
        hidden, logits = self._hidden[:tokens], self._decoder.capped(self._logits[:sampled])
        if self._decoder.spec.logit_softcap is not None:
            return Forward(hidden, logits)
        return Forward(hidden, logits, self._peaks[:sampled], self._tops[:sampled])
