"""Edits, penalties and grammars change what the native kernel chooses exactly as they do in the sampler."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from inferd.engine.batch import Batch, SlotInit
from inferd.engine.sampler import Sampler
from inferd.engine.sampler.rows import sample_rows
from inferd.engine.sampler.sampler import Sampled
from inferd.plugin.types import StepCounts
from inferd_client.protocol import SamplingParams
from inferd_kernels.cpu.operators import Choices, RowInputs, choose
from tests.kernels.cpu.test_head import KERNEL, WIDTH, matrix, random_sampling

torch.set_num_threads(1)


def random_edits(rng: random.Random, vocab: int) -> dict[str, Any]:
    def maybe(value: object, default: object) -> object:
        return value if rng.random() < 0.4 else default

    ids = rng.sample(range(vocab), min(vocab, 30))
    return {
        "repetition_penalty": maybe(rng.uniform(0.5, 2.0), 1.0),
        "presence_penalty": maybe(rng.uniform(-2, 2), 0.0),
        "frequency_penalty": maybe(rng.uniform(-1, 1), 0.0),
        "logit_bias": maybe({ids[0]: rng.uniform(-5, 5), ids[1]: 30.0, vocab - 1: 1.5}, {}),
        "min_tokens": maybe(rng.randint(1, 9), 0),
        "stop_token_ids": maybe((ids[2],), ()),
        "allowed_token_ids": maybe(tuple(ids), None),
        "logprobs": maybe(1, None),
    }


def inits(rng: random.Random, vocab: int, count: int) -> list[SlotInit]:
    found: list[SlotInit] = []
    for slot in range(count):
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 40))]
        output = [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
        plain = random_sampling(rng)
        fields = {name: getattr(plain, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
        sampling = SamplingParams(**fields, **(random_edits(rng, vocab) if slot % 4 else {}))
        words = [(5,), (*output[-1:], 6), (*output[-2:], 7), (rng.randrange(vocab), 8)]
        bad = tuple(rng.sample(words, 2)) if rng.random() < 0.3 else ()
        tokens = [*prompt, *output]
        found.append(SlotInit(slot, sampling.seed or 0, sampling, len(prompt), tokens, (1, 2), bad))
    return found


def verify_batch(rng: random.Random, slots: list[SlotInit], vocab: int, masked: float) -> Batch:
    """Every sequence runs its last token and up to 3 drafts, some of which its output has already."""
    tokens: list[int] = []
    positions: list[int] = []
    lens: list[int] = []
    for init in slots:
        drafts = [rng.choice([*init.tokens, rng.randrange(vocab)]) for _ in range(rng.randint(0, 3))]
        tokens += [init.tokens[-1], *drafts]
        positions += range(len(init.tokens) - 1, len(init.tokens) + len(drafts))
        lens.append(len(drafts))
    ends = np.cumsum(np.array(lens) + 1).astype(np.int32)
    owners = np.repeat(np.arange(len(slots)), np.array(lens) + 1)
    grammar = [init.slot for init in slots if rng.random() < masked]
    rows = np.flatnonzero(np.isin(owners, grammar)).astype(np.int32)
    bits = np.random.default_rng(rng.randrange(1 << 30)).integers(-(1 << 31), 1 << 31, (len(rows), -(-vocab // 32)))
    return Batch(
        counts=StepCounts(0, len(slots), 0),
        token_ids=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        cu_seqlens=np.concatenate(([0], ends)).astype(np.int32),
        context_lens=np.array(positions, np.int32)[ends - 1] + 1,
        block_tables=np.zeros((1, len(slots), 1), np.int32),
        slots=np.zeros((1, len(tokens)), np.int64),
        sample_rows=np.arange(len(tokens), dtype=np.int32),
        seq_slots=np.array([init.slot for init in slots], np.int32),
        draft_lens=np.array(lens, np.int32),
        sampling_seqs=np.arange(len(slots), dtype=np.int32),
        masked_rows=rows,
        masks=bits.astype(np.int32),
    )


def native_sampler(vocab: int, slots: list[SlotInit], rows: int) -> Sampler:
    sampler = Sampler(vocab, len(slots), "cpu", native_rows=rows)
    for init in slots:
        sampler.enter(init)
    return sampler


def choose_rows(sampler: Sampler, batch: Batch, x: torch.Tensor, weight: Any) -> tuple[Sampled, Choices]:
    assert sampler.native is not None
    sampler.native.load(batch)
    inputs = RowInputs(
        sampler.params.choice,
        torch.from_numpy(batch.row_slots.astype(np.int32)),
        sampler.native.row_masks,
        torch.from_numpy(batch.token_ids),
        torch.from_numpy(batch.positions.astype(np.int64)),
        torch.from_numpy(batch.sample_rows),
    )
    choices = choose(KERNEL, x, weight, None, inputs)
    return sampler.sample(choices.logits, sample_rows(batch), choices.ids.tolist()), choices


@pytest.mark.parametrize(("vocab", "spread"), [(37, 3.0), (1000, 4.0), (5003, 0.02), (9000, 5.0)])
def test_edited_rows_get_the_tokens_of_the_sampler(tier: str, vocab: int, spread: float) -> None:
    rng = random.Random(vocab)
    slots = inits(rng, vocab, 48)
    batch = verify_batch(rng, slots, vocab, masked=0.4)
    weight = matrix(vocab, spread)
    x = torch.randn(len(batch.token_ids), WIDTH, generator=torch.Generator().manual_seed(1))
    logits = KERNEL.linear(x, weight)
    oracle = Sampler(vocab, len(slots), "cpu")
    for init in slots:
        oracle.enter(init)
    want = oracle.sample(logits, sample_rows(batch))
    sampler = native_sampler(vocab, slots, len(batch.token_ids))
    got, choices = choose_rows(sampler, batch, x, weight)
    assert got.bad == want.bad
    assert got.empty == want.empty
    sound = [not empty for empty in want.empty]
    assert [t for t, s in zip(got.ids, sound, strict=True) if s] == [
        t for t, s in zip(want.ids, sound, strict=True) if s
    ]
    assert sum(sound) > 40
    plain = oracle.sample(logits, sample_rows(replace(batch, masked_rows=batch.masked_rows[:0])))
    assert want.ids != plain.ids  # the grammars matter
    kept = [row for row, slot in enumerate(batch.row_slots.tolist()) if slots[slot].sampling.logprobs is not None]
    assert kept
    assert torch.equal(choices.logits[kept], logits[kept])  # log-probabilities are of the model, not of the edits


def test_a_step_leaves_no_mask_to_the_next_and_a_slot_none_to_its_next_sequence(tier: str) -> None:
    rng = random.Random(5)
    slots, weight = inits(rng, 1000, 12), matrix(1000, 3.0)
    batch = verify_batch(rng, slots, 1000, masked=1.0)
    x = torch.randn(len(batch.token_ids), WIDTH)
    sampler = native_sampler(1000, slots, len(batch.token_ids))
    choose_rows(sampler, batch, x, weight)
    free = replace(batch, masked_rows=batch.masked_rows[:0], masks=batch.masks[:0])
    again, _ = choose_rows(sampler, free, x, weight)
    fresh, _ = choose_rows(native_sampler(1000, slots, len(batch.token_ids)), free, x, weight)
    assert again == fresh
    greedy = [init._replace(sampling=SamplingParams(temperature=0), bad_word_ids=()) for init in slots]
    for init in greedy:
        sampler.leave(init.slot)
        sampler.enter(init)
    assert choose_rows(sampler, free, x, weight)[0].ids == KERNEL.linear(x, weight).argmax(-1).tolist()


def test_history_follows_what_is_accepted(tier: str) -> None:
    rng = random.Random(6)
    weight, x = matrix(300, 0.5), torch.randn(1, WIDTH)
    sampling = SamplingParams(temperature=0, repetition_penalty=1.7, frequency_penalty=0.9)
    init = SlotInit(0, 0, sampling, 2, [3, 4], (), ())
    native, oracle = native_sampler(300, [init], 8), Sampler(300, 1, "cpu")
    oracle.enter(init)
    got: list[int] = []
    for _ in range(12):
        batch = verify_batch(rng, [init._replace(tokens=[3, 4, *got])], 300, masked=0.0)
        rows = x.expand(len(batch.token_ids), WIDTH).contiguous()
        (token, *_), _, _ = choose_rows(native, batch, rows, weight)[0]
        assert token == oracle.sample(KERNEL.linear(rows, weight), sample_rows(batch)).ids[0]
        native.accept(0, [token])
        oracle.accept(0, [token])
        got.append(token)
    assert len(set(got)) > 6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("warm", [{"temperature": 0.0}, {}, {"top_p": 0.5}])
def test_bad_logits_and_no_token_left_are_told_apart(tier: str, value: float, warm: dict[str, Any]) -> None:
    weight, x = matrix(700, 1.0), torch.randn(3, WIDTH)
    only = SamplingParams(allowed_token_ids=(5,), **warm)
    slots = [SlotInit(slot, slot, only, 1, [1, 9], (), ((5,),) if slot == 2 else ()) for slot in range(3)]
    batch = verify_batch(random.Random(0), slots, 700, masked=0.0)
    batch = replace(batch, **{name: getattr(batch, name)[:3] for name in ("token_ids", "positions", "sample_rows")})
    batch.draft_lens[:], batch.cu_seqlens[:] = 0, np.arange(4)
    x[1] = value
    sampled, _ = choose_rows(native_sampler(700, slots, 3), batch, x, weight)
    assert sampled.ids[0] == 5
    assert sampled.bad == [False, True, False]
    assert sampled.empty == [False, False, True]
