"""Speculation is invisible: greedy or sampled, the tokens of plain decoding; and the right distribution."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferd.link import SeqOutput, Submit
from inferd.plugin.types import DraftOutcome, DraftSequence
from tests.equivalence.choice import support
from tests.equivalence.levers import Knowing
from tests.equivalence.models import PROMPTS, Model
from tests.equivalence.oracle import Tally, greedy
from tests.equivalence.rig import Rig, Row, build, submit
from tests.equivalence.test_sampling import give

NGRAM = {"plugins": {"draft": "ngram"}, "max_draft": 4}


def with_draft(path: Path, drafter: Any, **options: Any) -> Rig:
    """Return an engine that asks `drafter` for proposals."""
    rig = build(path, **(NGRAM | options))
    rig.engine.drafter = drafter
    return rig


@pytest.mark.parametrize("prompt", [PROMPTS[1], PROMPTS[5]], ids=["short", "long"])
def test_an_end_inside_accepted_drafts_ends_the_output(llama: Path, prompt: list[int]) -> None:
    """1.7 (and 1.8): any generated id as EOS, in any place of a draft; nothing after it is told or counted."""
    plain = build(llama).run([submit("p", prompt, 12)])["p", 0].ids
    rig = with_draft(llama, Knowing([[*prompt, *plain]], wrong=0.0))
    for j in range(1, 9):
        for fields in ({"eos_ids": (plain[j],)}, {"stop_token_ids": (plain[j],)}):
            heard: list[SeqOutput] = []
            before = rig.accepted
            rig.engine.submit(submit("e", prompt, 12, **fields))
            while rig.engine.has_work:
                heard += rig.step().outputs
            ids = [token for output in heard for token in output.ids]
            assert ids == plain[: plain.index(plain[j]) + 1]
            assert [output.finish for output in heard] == [None] * (len(heard) - 1) + ["stop"]
            assert heard[-1].stop_token == plain[j]
            assert rig.accepted - before == heard[-1].accepted <= len(ids) - 1
            rig.assert_empty()
    assert rig.accepted > 20


@pytest.mark.parametrize("cap", range(1, 8))
def test_a_length_cap_inside_accepted_drafts(llama: Path, cap: int) -> None:
    """A stop inside the cap wins over the length; one past it was never generated."""
    plain = build(llama).run([submit("p", PROMPTS[1], 12)])["p", 0].ids
    rig = with_draft(llama, Knowing([[*PROMPTS[1], *plain]], wrong=0.0))
    stop = plain.index(plain[3])
    result = rig.run([submit("c", PROMPTS[1], cap, eos_ids=(plain[3],))])["c", 0]
    assert result.ids == plain[: min(cap, stop + 1)]
    assert result.finish == ("stop" if cap > stop else "length")
    rig.assert_empty()


def patterned(rng: random.Random) -> list[int]:
    """A prompt of a repeated phrase, cut somewhere, or one without any repetition."""
    phrase = rng.sample(range(20, 280), rng.randint(2, 5))
    return (phrase * 6)[: rng.randint(6, 20)] if rng.random() < 0.8 else rng.sample(range(20, 280), 12)


def test_ngrams_do_not_change_greedy_text(model: Callable[[str], Model]) -> None:
    """1.10: 50 prompts that invite drafts, beside ones that do not; k up to past every match."""
    rng, path = random.Random(41), model("llama").path
    prompts = [patterned(rng) for _ in range(50)]
    requests = [submit(str(i), prompt, 14) for i, prompt in enumerate(prompts)]
    plain = build(path, batch=10).run(requests)
    tally = Tally()
    for i in (0, 7, 21):
        tally.ids(greedy(model("llama").oracle_path, prompts[i], 14), plain[str(i), 0].ids)
    for k, lookup in ((4, {"min_n": 1, "max_n": 2}), (4, {"min_n": 2, "max_n": 5}), (9, {"min_n": 1, "max_n": 3})):
        rig = build(path, batch=10, plugins={"draft": "ngram"}, max_draft=k, draft=lookup)
        results = rig.run(requests)
        assert {at: r.ids for at, r in results.items()} == {at: r.ids for at, r in plain.items()}
        assert rig.tap.counts["verify rows"] > 20
        assert rig.accepted > 0
        assert any(result.drafted for result in results.values())
        assert any(not result.drafted for result in results.values())
        assert all(0 <= result.accepted <= result.drafted for result in results.values())
        rig.assert_empty()


class Guess:
    """Proposes tokens of a distribution that is not the model's."""

    active = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._rng = random.Random(8)

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self._rng.choices(self._tokens, k=min(k, seq.limit)) for seq in sequences]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Learns nothing."""

    def drop(self, key: int) -> None:
        """Keeps nothing of a sequence."""


LOGITS = (2.0, 1.5, 1.0, 0.5)
FIRST = 10
CRITICAL = {1: 10.83, 3: 16.27}
"""Chi-square at 0.001, by degrees of freedom."""


@pytest.mark.parametrize(
    ("filters", "count"), [({}, 200), ({"top_k": 2}, 50), ({"top_p": 0.7}, 50)], ids=["all", "top_k", "top_p"]
)
def test_drafts_at_temperature_one_keep_the_distribution(small: Path, filters: dict[str, Any], count: int) -> None:
    """1.11: 20,000 draws (5,000 with a filter) with foreign drafts are those of plain decoding, and the model's."""
    draws = {}
    for drafter in (None, Guess([FIRST, FIRST + 3, FIRST + 1, FIRST + 3])):
        rig = with_draft(small, drafter, batch=50, blocks=50 * 7, block_size=16, context=104, max_draft=3)
        rig.tap.on_row, rig.tap.keep_rows, rig.check_books = give(LOGITS, FIRST), False, False
        requests = [submit(str(i), [5], 100, temperature=1.0, seed=1000 * i, **filters) for i in range(count)]
        draws[drafter is None] = {at: result.ids for at, result in rig.run(requests).items()}
        assert (rig.accepted > 500) == (drafter is not None)
        rig.reports.clear()
    assert draws[True] == draws[False]
    counts = Counter(token - FIRST for ids in draws[False].values() for token in ids)
    total = counts.total()
    assert total == 100 * count
    kept = sorted(support(LOGITS, **filters))
    weights = {token: math.exp(LOGITS[token]) for token in kept}
    wanted = {token: total * weight / sum(weights.values()) for token, weight in weights.items()}
    assert set(counts) == set(kept)
    statistic = sum((counts[token] - want) ** 2 / want for token, want in wanted.items())
    assert statistic < CRITICAL.get(len(kept) - 1, 13.82), (counts, wanted)


HISTORY: tuple[dict[str, Any], ...] = (
    {"frequency_penalty": 2.0},
    {"presence_penalty": 2.0},
    {"repetition_penalty": 3.0},
    {"bad_word_ids": ((10, 11), (11, 12), (12, 10), (13, 13), (14, 10, 10))},
    {"min_tokens": 6, "eos_ids": (11,)},
)
"""What depends on the output so far."""


def with_history() -> list[Submit]:
    return [
        submit(f"{index} {seed}", [5], 8, temperature=1.0, seed=seed, **kind)
        for index, kind in enumerate(HISTORY)
        for seed in range(0, 3000, 100)
    ]


def flat_answers(rig: Rig) -> dict[tuple[str, int], list[int]]:
    """Run them on five tokens that are about as likely."""
    rig.tap.on_row, rig.tap.keep_rows = give((1.2, 1.1, 1.0, 1.0, 0.9), FIRST), False
    results = rig.run(with_history())
    assert all(result.error is None for result in results.values())
    for index in range(len(HISTORY)):
        preempted = [r for (key, _), r in results.items() if r.preemptions and key.startswith(str(index))]
        assert len(preempted) >= 5 or rig.scheduler.shape.num_blocks == 64
    return {at: result.ids for at, result in results.items()}


def test_a_row_after_drafts_counts_them_as_output(small: Path) -> None:
    """1.11 with penalties, bad words and min_tokens: a row sees the drafts before it."""
    rig = with_draft(small, Guess(range(FIRST, FIRST + 5)), max_draft=4)
    assert flat_answers(rig) == flat_answers(build(small))
    assert rig.accepted > 50


def test_a_preempted_sequence_keeps_its_history(small: Path) -> None:
    """1.3: what the sampler knows of a sequence is known again when it comes back."""
    rig = build(small, blocks=10, block_size=1, context=10, batch=4, prefix_cache=False)
    assert flat_answers(rig) == flat_answers(build(small))


def test_rows_after_rejected_drafts_never_count(llama: Path) -> None:
    """What a rejected draft wrote into the cache is overwritten before anything reads it."""
    plain = build(llama).run([submit("p", PROMPTS[5], 20)])["p", 0].ids
    rig = with_draft(llama, Guess(range(200, 290)), prefix_cache=True)
    contexts: list[Row] = rig.tap.rows
    assert rig.run([submit("p", PROMPTS[5], 20)])["p", 0].ids == plain
    assert len(contexts) > 60
    assert rig.run([submit("q", [*PROMPTS[5], *plain[:12]], 8)])["q", 0].ids == plain[12:]
    assert rig.hits > 0
    rig.assert_empty()
