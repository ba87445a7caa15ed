"""`BatchBuilder` against a plain construction of the same arrays, on random plans."""

from __future__ import annotations

import random
import time

import numpy as np

from inferd.engine.batch import Plan, Row
from inferd.engine.builder import BatchBuilder
from inferd.engine.request import Sequence
from inferd.engine.shape import EngineShape
from inferd.plugin.types import StepCounts
from inferd_client.protocol import SamplingParams

SIZE = 4
SHAPE = EngineShape(
    max_context=64, max_sequences=8, token_budget=64, chunk=32, block_size=SIZE, num_blocks=200, max_draft=4
)


def sequence(key: int, slot: int, length: int, computed: int, rng: random.Random) -> Sequence:
    tokens = [rng.randrange(1000) for _ in range(length)]
    seq = Sequence(
        key=key,
        request=str(key),
        choice=0,
        client="",
        tokens=tokens,
        num_prompt=min(length, 5),
        sampling=SamplingParams(prompt_logprobs=2 if key % 3 == 0 else None),
        seed=key,
        max_tokens=50,
        eos_ids=frozenset({5, 3}),
    )
    seq.slot, seq.num_computed = slot, computed
    seq.tables = [rng.sample(range(200), 16), rng.sample(range(200), 16)]
    seq.tables[1][0] = -1
    return seq


def plan_of(rng: random.Random) -> Plan:
    slots, all_decode = rng.sample(range(8), rng.randint(1, 8)), rng.random() < 0.3
    decode, verify, prefill = [], [], []
    for key, slot in enumerate(slots):
        length = rng.randint(2, 40)
        kind = 0 if all_decode else rng.randrange(3)
        if kind == 0:
            decode.append(Row(sequence(key, slot, length, length - 1, rng), length - 1, 1))
        elif kind == 1:
            drafts = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 4)))
            verify.append(Row(sequence(key, slot, length, length - 1, rng), length - 1, 1 + len(drafts), drafts))
        else:
            start = rng.randrange(length)
            count = min(rng.randint(1, length - start), 7)
            prefill.append(Row(sequence(key, slot, length, start, rng), start, count, (), start + count == length))
    rows = [*decode, *verify, *prefill]
    return Plan(rows, StepCounts(len(decode), len(verify), len(prefill)), entered=[row.seq for row in rows], left=[3])


def test_arrays_equal_a_plain_construction():
    rng = random.Random(2)
    builder = BatchBuilder(SHAPE, 2)
    for _ in range(200):
        plan = plan_of(rng)
        batch = builder.build(plan)
        at = 0
        sample_rows: list[int] = []
        for b, (seq, start, count, drafts, samples) in enumerate(plan.rows):
            known = (seq.tokens + list(drafts))[start : start + count]
            assert batch.token_ids[at : at + count].tolist() == known
            assert batch.positions[at : at + count].tolist() == list(range(start, start + count))
            assert (batch.cu_seqlens[b], batch.cu_seqlens[b + 1]) == (at, at + count)
            assert batch.context_lens[b] == start + count
            assert batch.seq_slots[b] == seq.slot
            assert batch.draft_lens[b] == len(drafts)
            for group in range(2):
                table = [max(0, block) for block in seq.tables[group]]
                blocks = -(-(start + count) // SIZE)
                assert batch.block_tables[group, b, :blocks].tolist() == table[:blocks]
                wanted = [table[p // SIZE] * SIZE + p % SIZE for p in range(start, start + count)]
                assert batch.slots[group, at : at + count].tolist() == wanted
            at += count
            if samples:
                sample_rows += range(at - 1 - len(drafts), at)
        assert batch.num_tokens == at == plan.num_tokens
        assert batch.sample_rows.tolist() == sample_rows
        assert batch.sampling_seqs.tolist() == [b for b, row in enumerate(plan.rows) if row.samples]
        assert batch.prompt_rows == tuple(
            (b, 2)
            for b, row in enumerate(plan.rows)
            if b >= plan.counts.decode + plan.counts.verify
            and row.seq.key % 3 == 0
            and row.start < row.seq.num_prompt - 1
        )
        assert [init.slot for init in batch.enter] == [row.seq.slot for row in plan.rows]
        assert batch.enter[0].eos_ids == (3, 5)
        assert batch.leave == [3]
        for name in ("token_ids", "positions", "cu_seqlens", "context_lens", "block_tables", "sample_rows"):
            assert getattr(batch, name).dtype == np.int32
        assert batch.slots.dtype == np.int64


def test_a_block_exchanged_after_a_cut_is_seen():
    """Rejected drafts gave a block back; the next step fills another one at the same index."""
    rng = random.Random(3)
    builder = BatchBuilder(SHAPE, 2)
    seq = sequence(1, 2, 8, 7, rng)
    builder.build(Plan([Row(seq, 7, 5, (1, 2, 3, 4))], StepCounts(0, 1, 0), entered=[seq]))
    seq.tokens.append(9)
    seq.tables[0][2] = 150
    batch = builder.build(Plan([Row(seq, 8, 1)], StepCounts(1, 0, 0)))
    assert batch.slots[0].tolist() == [150 * SIZE]
    assert batch.block_tables[0, 0, 2] == 150


def test_sixty_four_decode_rows_are_cheap():
    rng = random.Random(4)
    shape = EngineShape(max_context=2048, max_sequences=64, token_budget=512, chunk=256, block_size=16, num_blocks=9000)
    builder = BatchBuilder(shape, 1)
    seqs = [sequence(1, slot, 900 + slot, 899 + slot, rng) for slot in range(64)]
    for seq in seqs:
        seq.tables = [rng.sample(range(9000), 128)]
    rows = [Row(seq, seq.num_computed, 1) for seq in seqs]
    builder.build(Plan(rows, StepCounts(64, 0, 0), entered=seqs))
    best = 1.0
    for _ in range(30):
        start = time.thread_time()
        builder.build(Plan(rows, StepCounts(64, 0, 0)))
        best = min(best, time.thread_time() - start)
    assert best < 0.0005
