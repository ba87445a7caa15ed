"""Sampling through the engine: every request's own parameters, whatever runs beside it and however."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.engine.offline import Results
from inferd.link import Submit
from tests.equivalence.choice import check_choices, support
from tests.equivalence.levers import ENOUGH, Knowing, Mix, rigged
from tests.equivalence.models import PROMPTS
from tests.equivalence.rig import Rig, Row, build, submit

EOS = (1, 3)
FAVOURED = {20: 5.0, 21: 5.0, 22: 4.0}
"""Biases that make a model of random weights repeat itself, for penalties to find something."""
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.2},
    {"repetition_penalty": 1.7, "logit_bias": FAVOURED},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.7, "logit_bias": FAVOURED},
    {"frequency_penalty": 2.0, "repetition_penalty": 0.8, "logit_bias": FAVOURED},
    {"temperature": 0.9, "logit_bias": {20: 6.0, 21: -50.0, 100: 5.5}},
    {"temperature": 1.0, "allowed_token_ids": (30, 31, 32, 33, 250)},
    {"allowed_token_ids": (40, 41, 42), "bad_word_ids": ((41,), (42, 40), (40, 42, 42))},
    {"temperature": 1.0, "top_k": 3, "bad_word_ids": ((7,), (8, 9))},
    {"logit_bias": {1: 50.0, 3: 50.0}, "eos_ids": EOS, "min_tokens": 4},
    {"temperature": 1.0, "logit_bias": {1: 4.0, 60: 5.0}, "eos_ids": EOS, "stop_token_ids": (60,), "min_tokens": 6},
    {"temperature": 1.0, "logit_bias": {3: 8.0}, "eos_ids": EOS, "ignore_eos": True},
)
SCHEDULES = {
    "alone": Mix(batch=1),
    "together": Mix(batch=16),
    "tight": Mix(batch=8, blocks=ENOUGH + 2, chunk=3),
    "static": Mix(batch=4, batching="static", kv="contiguous"),
    "drafts": Mix(batch=16, draft="k4"),
    "drafts, tight": Mix(batch=5, draft="k2", blocks=ENOUGH, chunk=2, attention="reference"),
    "recomputed": Mix(batch=3, kv="recompute", expand_gqa=True),
}


def requests() -> list[Submit]:
    """One of each kind, over prompts of all lengths."""
    return [submit(str(i), PROMPTS[i % len(PROMPTS)], 10, seed=100 + i, **kind) for i, kind in enumerate(KINDS)]


def ids(results: Results) -> dict[tuple[str, int], list[int]]:
    assert all(result.error is None for result in results.values())
    return {at: result.ids for at, result in results.items()}


@pytest.fixture(scope="module")
def plain(llama: Path) -> dict[tuple[str, int], list[int]]:
    return ids(build(llama, batch=16).run(requests()))


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_token_is_the_reference_choice_under_every_schedule(
    llama: Path, plain: dict[tuple[str, int], list[int]], name: str
) -> None:
    """2.1, 2.5, 2.7, 2.10: one batch of all kinds; a seed gives the same tokens whatever the schedule."""
    mix, all_requests = SCHEDULES[name], requests()
    drafting = mix.draft != "none"
    drafter = Knowing([[*r.prompt, *plain[r.key, 0]] for r in all_requests]) if drafting else None
    rig = rigged(llama, mix, drafter, plugins={"draft": "ngram"} if drafting else {})
    results = rig.run(all_requests)
    check_choices(rig.tap.rows, all_requests, results)
    assert ids(results) == plain
    assert rig.preemptions > 0 or "tight" not in name
    assert (rig.accepted > 10) == drafting
    assert (rig.tap.counts["verify rows"] > 0) == drafting
    rig.assert_empty()


def test_the_kinds_bite(llama: Path, plain: dict[tuple[str, int], list[int]]) -> None:
    """Each parameter changes what is chosen: the same request without it goes elsewhere."""
    bare = []
    for request, kind in zip(requests(), KINDS, strict=True):
        kept = {"temperature"} | ({"logit_bias"} if any("penalty" in name for name in kind) else set())
        if set(kind) - kept:
            fields = {name: value for name, value in kind.items() if name in kept}
            bare.append(submit(request.key, request.prompt, 10, seed=request.sampling.seed, **fields))
    results = ids(build(llama, batch=16).run(bare))
    assert len(results) == len(KINDS) - 2
    same = [KINDS[int(key)] for (key, _), got in results.items() if got == plain[key, 0]]
    assert same == []
    for kind, got in zip(KINDS, plain.values(), strict=True):
        allowed = kind.get("allowed_token_ids")
        assert allowed is None or set(got) <= set(allowed)
        for word in kind.get("bad_word_ids", ()):
            assert word not in {tuple(got[i : i + len(word)]) for i in range(len(got))}


@pytest.mark.parametrize("eos", [(1,), (1, 3), (3, 1, 200)])
@pytest.mark.parametrize("draft", [False, True])
def test_min_tokens_holds_back_every_end(llama: Path, eos: tuple[int, ...], draft: bool) -> None:
    """2.10: with every EOS pushed by +100, exactly four other tokens, then an EOS; the prompt does not count."""
    rig = build(llama, plugins={"draft": "ngram"} if draft else None, max_draft=3)
    if draft:
        rig.engine.drafter = Knowing([[*range(50, 60), *[eos[0]] * 20]], wrong=0.0)
    bias = dict.fromkeys(eos, 100.0)
    request = submit("m", range(50, 60), 12, min_tokens=4, logit_bias=bias, eos_ids=eos, stop_token_ids=(9,))
    result = rig.run([request])["m", 0]
    assert len(result.ids) == 5
    assert not set(result.ids[:4]) & {*eos, 9}
    assert result.ids[4] in eos
    assert result.finish == "stop"
    ignoring = submit("i", range(50, 60), 12, min_tokens=4, logit_bias=bias, eos_ids=eos, ignore_eos=True)
    result = rig.run([ignoring])["i", 0]
    assert len(result.ids) == 12
    assert set(result.ids) <= set(eos), "ignored ends are ordinary tokens, before min_tokens too"
    assert result.finish == "length"


def test_a_seeded_row_depends_on_no_neighbour(llama: Path) -> None:
    """2.1: beside nobody, unseeded, seeded and greedy rows, in any order, in four runs each."""
    rig = build(llama, batch=6)
    mine = submit("mine", PROMPTS[3], 12, seed=42, temperature=0.8)
    want = rig.run([mine])["mine", 0].ids
    peers = {
        "unseeded": {"temperature": 1.0, "seed": None},
        "seeded": {"temperature": 1.0, "seed": 43, "top_p": 0.8},
        "same seed": {"temperature": 0.8, "seed": 42},
        "greedy": {},
    }
    rng = random.Random(1)
    for kinds in (["unseeded"], ["seeded"], ["greedy"], ["same seed"], list(peers)):
        for _ in range(4):
            batch = [mine, *(submit(kind, PROMPTS[i], 14, **peers[kind]) for i, kind in enumerate(kinds))]
            rng.shuffle(batch)
            assert rig.run(batch)["mine", 0].ids == want


def test_choices_differ_end_and_come_again(llama: Path) -> None:
    """2.3: choice i is the request of seed + i; the last ends long after the first; no seed is a fresh one."""
    rig = build(llama, batch=3)

    def run(key: str, **fields: Any) -> list[list[int]]:
        results = rig.run([submit(key, PROMPTS[4], 14, temperature=1.0, **fields)])
        assert all(result.finish for result in results.values())
        return [result.ids for result in results.values()]

    four = run("n", n=4, seed=7)
    assert len({tuple(got) for got in four}) == 4
    assert run("again", n=4, seed=7) == four
    assert [run("one", seed=7 + i)[0] for i in range(4)] == four
    ending = run("ends", n=4, seed=7, eos_ids=(four[0][1],))
    assert ending[0] == four[0][:2]
    assert max(map(len, ending)) > 2
    assert run("free", n=2, seed=None) != run("free", n=2, seed=None)
    rig.assert_empty()


FIXED = (2.0, 1.8, 1.5, 1.5, 1.0, 0.2, -1.0, -3.0)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 2},
    {"top_k": 3},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"min_p": 0.5},
    {"min_p": 1.0},
    {"top_k": 5, "top_p": 0.7},
    {"min_p": 0.1, "top_k": 7, "top_p": 0.8},
    {"top_k": 1},
    {"top_p": 1e-6},
)


def give(logits: Sequence[float], first: int = 10) -> Callable[[Row], None]:
    """Return a hook that gives every row these logits for the tokens from `first` on, and no other token."""

    def hook(row: Row) -> None:
        row.logits.fill_(float("-inf"))
        row.logits[first : first + len(logits)] = torch.tensor(logits)

    return hook


def test_each_row_of_a_mixed_batch_keeps_its_own_support(llama: Path) -> None:
    """2.5: filters of some rows leave the others alone; with 250 draws each row shows its whole support."""
    rig = build(llama, batch=len(FILTERS), blocks=128)
    rig.tap.on_row, rig.tap.keep_rows = give(FIXED), False
    seen: list[set[int]] = [set() for _ in FILTERS]
    for turn in range(5):
        batch = [
            submit(str(i), PROMPTS[1], 50, temperature=1.5, seed=1000 * turn + i, **filters)
            for i, filters in enumerate(FILTERS)
        ]
        random.Random(turn).shuffle(batch)
        for (key, _), result in rig.run(batch).items():
            seen[int(key)] |= set(result.ids)
    for filters, got in zip(FILTERS, seen, strict=True):
        want = support([x / 1.5 for x in FIXED], **filters)
        assert got == {10 + token for token in want}, filters


def test_penalties_leave_the_first_token_to_the_prompt_alone(llama: Path) -> None:
    """2.7: presence and frequency see no prompt token, repetition does; rows of unequal length."""
    rig: Rig = build(llama)
    rig.tap.on_row = give((3.0, 2.9))
    with_best, without = [10, 5, 10, 10], [5] * 17
    batch = [
        submit("presence", with_best, 3, presence_penalty=2.0),
        submit("frequency", with_best, 3, frequency_penalty=0.06),
        submit("repetition", with_best, 3, repetition_penalty=2.0),
        submit("other prompt", without, 3, repetition_penalty=2.0),
        submit("none", with_best, 3),
    ]
    results = rig.run(batch)
    assert results["presence", 0].ids == [10, 11, 10], "after both were used neither is ahead"
    assert results["frequency", 0].ids == [10, 10, 11]
    assert results["repetition", 0].ids == [11, 10, 10]
    assert results["other prompt", 0].ids == [10, 11, 10]
    assert results["none", 0].ids == [10, 10, 10]
