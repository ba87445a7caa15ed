"""Fixed addresses, bounded buffers and the size of KV pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from inferd.engine.batch import Batch
from inferd.engine.kvcache import allocate, nbytes
from inferd.engine.shape import EngineShape
from inferd.engine.workspace import BucketWorkspace, StepBuffers
from inferd.plugin.types import KVGroup, KVLayout, KVPlane, StepCounts

SHAPE = EngineShape(max_context=16, max_sequences=2, token_budget=8, chunk=8, block_size=4, num_blocks=6)


def batch(tokens: int, contexts: list[int]) -> Batch:
    return Batch(
        counts=StepCounts(0, 0, len(contexts)),
        token_ids=np.arange(tokens, dtype=np.int32),
        positions=np.arange(tokens, dtype=np.int32),
        cu_seqlens=np.linspace(0, tokens, len(contexts) + 1).astype(np.int32),
        context_lens=np.array(contexts, dtype=np.int32),
        block_tables=np.ones((1, len(contexts), 3), dtype=np.int32),
        slots=np.arange(tokens, dtype=np.int64)[None],
        sample_rows=np.array([tokens - 1], dtype=np.int32),
        seq_slots=np.zeros(len(contexts), dtype=np.int32),
        draft_lens=np.zeros(len(contexts), dtype=np.int32),
        sampling_seqs=np.array([0], dtype=np.int32),
    )


def test_inputs_keep_their_addresses_and_carry_the_step() -> None:
    buffers = StepBuffers(SHAPE, 1, "cpu")
    first, second = buffers.fill(batch(8, [8, 4])), buffers.fill(batch(5, [5]))
    for name in ("token_ids", "positions", "cu_seqlens", "context_lens", "block_tables", "slots", "sample_rows"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr()
    assert second.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert (second.query_lens, second.context_lens_host) == ([5], [5])
    assert (second.block_tables.shape, second.slots.shape) == ((1, 1, 3), (1, 5))
    assert (second.positions.dtype, second.slots.dtype) == (torch.int64, torch.int64)


def test_a_program_finishes_rows_that_sample_or_all_that_a_prompt_reports() -> None:
    buffers = StepBuffers(SHAPE, 1, "cpu")
    step = batch(5, [5])
    assert buffers.load(step) == (5, 1, 1, 1)
    assert (int(buffers.kept_rows[0]), int(buffers.sample_kept[0])) == (4, 0)
    assert buffers.load(replace(step, prompt_rows=((0, 3),))) == (5, 1, 1, 5)
    assert (buffers.kept_rows[:5].tolist(), int(buffers.sample_kept[0])) == ([0, 1, 2, 3, 4], 4)
    silent = replace(step, sample_rows=step.sample_rows[:0], sampling_seqs=step.sampling_seqs[:0])
    assert buffers.load(silent) == (5, 1, 0, 0)


def test_a_step_past_the_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step of \(9,\) does not fit"):
        StepBuffers(SHAPE, 1, "cpu").fill(batch(9, [9]))
    with pytest.raises(ValueError, match="does not fit"):
        StepBuffers(SHAPE, 1, "cpu").fill(batch(3, [1, 1, 1]))


def test_a_workspace_returns_the_same_memory_per_bucket() -> None:
    workspace = BucketWorkspace("cpu")
    eager = workspace.take("scores", (4, 8), torch.float32)
    assert workspace.take("scores", (2, 8), torch.float32).data_ptr() == eager.data_ptr()
    workspace.enter(8)
    captured = workspace.take("scores", (4, 8), torch.float32)
    assert captured.data_ptr() != eager.data_ptr()
    workspace.seal()
    assert workspace.take("scores", (8, 4), torch.float32).data_ptr() == captured.data_ptr()
    with pytest.raises(ValueError, match="sealed bucket 8"):
        workspace.take("scores", (5, 8), torch.float32)
    with pytest.raises(ValueError, match="sealed bucket 8"):
        workspace.take("new", (1,), torch.float32)
    workspace.enter(0)
    assert workspace.take("scores", (64,), torch.float32).numel() == 64


@pytest.mark.parametrize(("format", "width"), [("fp32", 4), ("bf16", 2), ("fp16", 2), ("int8", 1), ("fp8", 1)])
def test_pools_have_the_bytes_their_layouts_state(format: Any, width: int) -> None:
    planes = (KVPlane("k", 2, 8), KVPlane("v", 2, 8))
    scales = (KVPlane("k_scale", 2, 1), KVPlane("v_scale", 2, 1)) if width == 1 else ()
    layouts = [
        KVLayout(KVGroup((0, 2), planes), format, 4, scales),
        KVLayout(KVGroup((1,), (KVPlane("k", 1, 4), KVPlane("v", 1, 4)), window=8), format, 4),
    ]
    pools = allocate(layouts, 6, "cpu", range(3))
    assert nbytes(pools) == 6 * sum(layout.bytes_per_block for layout in layouts)
    assert pools[0]["k"].shape == (6, 4, 2, 8)
    assert pools[0]["k"].element_size() == width
    assert sorted(allocate(layouts, 6, "cpu", (1,))) == [1]
