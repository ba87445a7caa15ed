"""The vectorised sampler against single rows in float64, rows mixed with anything."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from inferd.engine.sampler import Sampler
from inferd_client.protocol import SamplingParams
from tests.engine.sampler.driver import enter, plain_rows, sample_rows
from tests.engine.sampler.oracle import Row

torch.set_num_threads(1)
VOCAB = 37


def random_params(rng: random.Random) -> SamplingParams:
    def maybe(value: object, default: object) -> object:
        return value if rng.random() < 0.4 else default

    ids = rng.sample(range(VOCAB), 12)
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 0.8, 1.0, 2.5]),
        top_k=maybe(rng.randint(1, VOCAB + 3), 0),
        top_p=maybe(rng.uniform(0.05, 0.99), 1.0),
        min_p=maybe(rng.uniform(0.01, 0.6), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2.0), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        logit_bias=maybe({ids[0]: rng.uniform(-5, 5), ids[1]: 3.0}, {}),
        min_tokens=maybe(rng.randint(1, 9), 0),
        stop_token_ids=maybe((ids[2],), ()),
        ignore_eos=rng.random() < 0.3,
        allowed_token_ids=maybe(tuple(ids), None),
    )


def random_row(rng: random.Random, generator: np.random.Generator) -> Row:
    output = [rng.randrange(VOCAB) for _ in range(rng.randint(0, 9))]
    words = [[5], [*output[-1:], 6], [*output[-2:], 7], [rng.randrange(VOCAB), 8]]
    return Row(
        logits=(generator.standard_normal(VOCAB) * 3).astype(np.float32),
        sampling=random_params(rng),
        prompt=[rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))],
        output=output,
        seed=rng.randrange(2**63),
        eos_ids=(1, 2),
        bad_words=rng.sample(words, 2) if rng.random() < 0.4 else (),
    )


def many_rows(count: int, seed: int) -> list[Row]:
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    return [random_row(rng, generator) for _ in range(count)]


def test_mixed_rows_equal_the_single_row_oracle() -> None:
    rows = many_rows(400, seed=1)
    sampled = sample_rows(rows)
    compared = 0
    for row, token, bad, empty in zip(rows, *sampled, strict=True):
        want, gap = row.token()
        assert not bad
        assert empty == bool(np.isneginf(row.edited()).all())
        if gap > 1e-4 and not empty:
            compared += 1
            assert token == want, row
    assert compared > 390


def test_rows_do_not_depend_on_their_mates_or_order() -> None:
    rows = many_rows(60, seed=2)
    together = sample_rows(rows).ids
    alone = [sample_rows([row]).ids[0] for row in rows]
    order = list(range(60))
    random.Random(3).shuffle(order)
    shuffled = sample_rows([rows[i] for i in order]).ids
    assert together == alone
    assert [together[i] for i in order] == shuffled


def test_a_seeded_row_ignores_peers_without_a_seed() -> None:
    """Case 2.1: ids of the seeded row over eight steps, whoever runs beside it."""
    generator = np.random.default_rng(5)
    logits = generator.standard_normal((8, VOCAB)).astype(np.float32)
    warm = SamplingParams(temperature=0.8)

    def run(peers: list[Row]) -> list[int]:
        out: list[int] = []
        for step in range(8):
            row = Row(logits[step], warm, prompt=[1], output=out[:], seed=42)
            out.append(sample_rows([*peers, row]).ids[-1])
        return out

    alone = run([])
    for seed in (0, 42, 7):
        assert run([Row(logits[0], warm, seed=seed), Row(logits[1], SamplingParams(temperature=0), seed=seed)]) == alone
    assert len(set(alone)) > 2


def test_supports_of_rows_that_filter_differently() -> None:
    """Case 2.5: only some rows set top_k, top_p or min_p; each draws from its own support and all of it."""
    logits = np.random.default_rng(6).standard_normal(12).astype(np.float32)
    kinds = [{"top_k": 3}, {}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 5, "top_p": 0.5}, {"top_k": 1}]
    supports: list[set[int]] = []
    for seed in range(300):
        rows = [Row(logits, SamplingParams(temperature=1.5, **kind), seed=seed) for kind in kinds]
        ids = sample_rows(rows).ids
        supports = supports or [set(np.flatnonzero(np.isfinite(row.filtered()))) for row in rows]
        for token, support in zip(ids, supports, strict=True):
            assert token in support
    assert [len(s) for s in supports] == [3, 12, len(supports[2]), len(supports[3]), len(supports[4]), 1]
    assert 1 < len(supports[2]) < 12
    assert 1 < len(supports[3]) < 12


def test_ties_go_to_the_lowest_id() -> None:
    flat = np.zeros(9, dtype=np.float32)
    flat[[2, 5]] = 1.0
    assert sample_rows([Row(flat, SamplingParams(temperature=0))]).ids == [2]
    assert sample_rows([Row(flat, SamplingParams(temperature=0, logit_bias={2: -1.0}))]).ids == [5]
    equal = np.zeros(8, dtype=np.float32)
    seen = {sample_rows([Row(equal, SamplingParams(top_p=0.5), seed=s)]).ids[0] for s in range(200)}
    assert seen == {0, 1, 2, 3}
    kept = {sample_rows([Row(equal, SamplingParams(top_k=2), seed=s)]).ids[0] for s in range(200)}
    assert kept == set(range(8))  # vLLM keeps what ties with the k-th


def test_a_tiny_temperature_is_greedy() -> None:
    logits = np.random.default_rng(7).standard_normal(VOCAB).astype(np.float32)
    assert sample_rows([Row(logits, SamplingParams(temperature=1e-30))]).ids == [int(logits.argmax())]


def test_large_vocabularies_take_the_sorted_path_for_flat_rows() -> None:
    """A nucleus wider than the probe, beside a narrow one."""
    generator = np.random.default_rng(8)
    flat = (generator.standard_normal(5000) * 0.01).astype(np.float32)
    peaked = (generator.standard_normal(5000) * 4).astype(np.float32)
    rows = [Row(x, SamplingParams(top_p=0.9), seed=s) for s in range(6) for x in (flat, peaked)]
    want = [row.token() for row in rows]
    assert np.isfinite(rows[0].filtered()).sum() > 2000
    for got, (token, gap) in zip(sample_rows(rows).ids, want, strict=True):
        assert got == token or gap < 1e-4


class TestPenalties:
    """Case 2.7: repetition counts prompt and output, presence and frequency the output only."""

    LOGITS = np.array([2.0, -1.0, 1.9, 0.5], dtype=np.float32)

    def pick(self, prompt: list[int], output: list[int], **penalties: float) -> int:
        row = Row(self.LOGITS, SamplingParams(temperature=0, **penalties), prompt=prompt, output=output)
        return sample_rows([row, Row(self.LOGITS, SamplingParams(temperature=0), prompt=[0] * 30)]).ids[0]

    def test_hand_computed(self) -> None:
        assert self.pick([0, 0, 0], [], presence_penalty=2.0, frequency_penalty=2.0) == 0
        assert self.pick([0], [], repetition_penalty=1.1) == 2
        assert self.pick([1], [0], presence_penalty=0.2) == 2
        assert self.pick([1], [0], frequency_penalty=0.09) == 0
        assert self.pick([1], [0, 0], frequency_penalty=0.09) == 2
        assert self.pick([1], [0, 0], presence_penalty=0.09) == 0
        assert self.pick([0, 2], [], repetition_penalty=5.0) == 3
        assert self.pick([0, 2, 3], [], repetition_penalty=5.0) == 0

    def test_negative_logits_are_multiplied(self) -> None:
        row = Row(np.array([-1.0, -1.1], np.float32), SamplingParams(temperature=0, repetition_penalty=2.0), prompt=[0])
        assert sample_rows([row]).ids == [1]

    def test_history_grows_with_what_was_accepted(self) -> None:
        sampler = Sampler(4, 1, "cpu")
        enter(sampler, 0, Row(self.LOGITS, SamplingParams(temperature=0, presence_penalty=0.2), prompt=[0]))
        logits = torch.from_numpy(self.LOGITS).unsqueeze(0)
        assert sampler.sample(logits, plain_rows([0], [1])).ids == [0]
        sampler.accept(0, [0])
        assert sampler.sample(logits, plain_rows([0], [2])).ids == [2]
        sampler.accept(0, [2])
        assert sampler.sample(logits, plain_rows([0], [3])).ids == [0]

    def test_a_slot_forgets_its_last_sequence(self) -> None:
        sampler = Sampler(4, 2, "cpu")
        penalised = SamplingParams(temperature=0, repetition_penalty=9.0, logit_bias={3: 50.0})
        logits = torch.from_numpy(self.LOGITS).unsqueeze(0)
        for _ in range(20):
            enter(sampler, 1, Row(self.LOGITS, penalised, prompt=[0, 2]))
            assert sampler.sample(logits, plain_rows([1], [2])).ids == [3]
            sampler.leave(1)
            enter(sampler, 1, Row(self.LOGITS, SamplingParams(temperature=0), prompt=[0, 2]))
            assert sampler.sample(logits, plain_rows([1], [2])).ids == [0]
            sampler.leave(1)
            enter(sampler, 1, Row(self.LOGITS, SamplingParams(temperature=0, repetition_penalty=9.0), prompt=[1]))
            assert sampler.sample(logits, plain_rows([1], [1])).ids == [0], (
                "tokens of the sequence before are not its own"
            )
            sampler.leave(1)


class TestMinTokens:
    """Case 2.10: exactly min_tokens others come before an EOS that always wins."""

    LOGITS = np.array([1.0, 0.0, 0.5, 100.0, 99.0], dtype=np.float32)

    def run(self, count: int, **sampling: object) -> list[int]:
        out: list[int] = []
        for _ in range(count):
            row = Row(
                self.LOGITS, SamplingParams(temperature=0, **sampling), prompt=[0] * 10, output=out[:], eos_ids=(3, 4)
            )
            out += sample_rows([row]).ids
        return out

    def test_blocks_every_end_until_reached(self) -> None:
        assert self.run(5, min_tokens=4) == [0, 0, 0, 0, 3]

    def test_blocks_stop_tokens_too(self) -> None:
        assert self.run(3, min_tokens=2, stop_token_ids=(0,)) == [2, 2, 3]

    def test_leaves_eos_alone_when_it_does_not_end(self) -> None:
        assert self.run(2, min_tokens=2, ignore_eos=True) == [3, 3]
        assert self.run(3, min_tokens=2, ignore_eos=True, stop_token_ids=(3,)) == [4, 4, 3]


class TestNumerics:
    """Case 2.13: a row without finite logits errs alone."""

    @pytest.mark.parametrize("value", ["nan", "inf", "all -inf", "one nan"])
    @pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_p": 0.5}, {"logit_bias": {1: 2.0}}, {}])
    def test_bad_rows_are_flagged_and_spare_their_mates(self, value: str, sampling: dict[str, object]) -> None:
        rows = many_rows(3, seed=9)
        rows = [Row(r.logits, SamplingParams(**sampling), prompt=[1], seed=i) for i, r in enumerate(rows)]
        good = sample_rows(rows)
        spoiled = {
            "nan": np.full(VOCAB, np.nan),
            "inf": np.where(np.arange(VOCAB) == 4, np.inf, rows[1].logits),
            "all -inf": np.full(VOCAB, -np.inf),
            "one nan": np.where(np.arange(VOCAB) == 4, np.nan, rows[1].logits),
        }[value]
        rows[1].logits = spoiled.astype(np.float32)
        sampled = sample_rows(rows)
        assert sampled.bad == [False, True, False]
        assert [sampled.ids[0], sampled.ids[2]] == [good.ids[0], good.ids[2]]

    def test_rules_that_leave_nothing_are_told_apart(self) -> None:
        rows = many_rows(2, seed=10)
        rows[1].sampling = SamplingParams(temperature=0.0, allowed_token_ids=(5,))
        rows[1].bad_words = [[5]]
        sampled = sample_rows(rows)
        assert sampled.bad == [False, False]
        assert sampled.empty == [False, True]
