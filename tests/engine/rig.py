"""Drive a `Runner` by hand-made plans: sequences with blocks of their own, no scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from inferd.engine.batch import Batch, Plan, Row, RowOutput, StepOutput
from inferd.engine.builder import BatchBuilder
from inferd.engine.request import Sequence
from inferd.engine.runner import Runner
from inferd.engine.shape import EngineShape
from inferd.model import kv_groups
from inferd.model.decoder import Decoder
from inferd.plugin.types import StepCounts
from inferd_client.protocol import SamplingParams
from inferd_plugins.attention.torch import TorchAttention

SHAPE = EngineShape(
    max_context=64, max_sequences=4, token_budget=64, chunk=64, block_size=4, num_blocks=64, max_draft=6
)


def runner(decoder: Decoder, *, blocks: int = SHAPE.num_blocks, **options: Any) -> Runner:
    backend = TorchAttention()
    layouts = [backend.kv_layout(group, "fp32", SHAPE.block_size) for group in kv_groups(decoder.spec)]
    shape = replace(SHAPE, num_blocks=blocks)
    return Runner(decoder, backend, layouts, shape, device="cpu", dtype=torch.float32, **options)


@dataclass(slots=True)
class Rig:
    """Builds batches; slot i owns blocks 16 i to 16 i + 15."""

    runner: Runner
    builder: BatchBuilder = field(default_factory=lambda: BatchBuilder(SHAPE, 1))
    entered: list[Sequence] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    def add(self, slot: int, prompt: list[int], sampling: SamplingParams, **fields: Any) -> Sequence:
        values: dict[str, Any] = {"seed": sampling.seed or 0, "eos_ids": frozenset({2})} | fields
        sequence = Sequence(
            key=slot,
            request=f"r{slot}",
            choice=0,
            client="c",
            tokens=list(prompt),
            num_prompt=len(prompt),
            sampling=sampling,
            max_tokens=50,
            slot=slot,
            tables=[list(range(16 * slot, 16 * slot + 16))],
            **values,
        )
        self.entered.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self.left.append(sequence.slot)

    def batch(self, rows: list[Row]) -> Batch:
        """Rows in order decode, verify, prefill."""
        verify = sum(bool(row.drafts) for row in rows)
        decode = sum(row.num_tokens == 1 and row.samples and not row.drafts for row in rows)
        plan = Plan(rows, StepCounts(decode, verify, len(rows) - decode - verify))
        plan.entered, plan.left = self.entered, self.left
        batch = self.builder.build(plan)
        self.entered, self.left = [], []
        return batch

    def step(self, rows: list[Row]) -> StepOutput:
        output = self.runner.step(self.batch(rows))
        assert output is not None
        for row, got in zip([row for row in rows if row.samples], output.rows, strict=True):
            row.seq.tokens.extend(got.ids)
        for row in rows:
            row.seq.num_computed = row.start + row.num_tokens if not row.samples else row.seq.num_tokens - 1
        return output

    def advance(self, sequence: Sequence, drafts: tuple[int, ...] = ()) -> RowOutput:
        """Run what a sequence has not computed yet, with drafts after it, alone."""
        start = sequence.num_computed
        count = sequence.num_tokens - start + len(drafts)
        return self.step([Row(sequence, start, count, drafts)]).rows[0]
