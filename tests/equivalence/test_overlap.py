"""Steps planned before the last one's tokens are known: what ends late, joins late or needs the host is the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inferd.engine.offline import Result, Results, run
from inferd.link import Submit
from tests.equivalence.models import PROMPTS
from tests.equivalence.rig import Rig, build, submit

EOS = (60, 61)
LIKELY = {"logit_bias": {60: 4.0, 61: 4.0}}
PLAIN: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "n": 3},
    {"temperature": 2.5, "eos_ids": tuple(range(40, 120))},
    {"temperature": 2.5, "stop_token_ids": tuple(range(100, 160)), "n": 2},
    {"temperature": 1.5, "max_tokens": 1},
    {"temperature": 1.5, "max_tokens": 2},
)
"""Their tokens are chosen without the host; some stop, most of them early."""
HELPED: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "logprobs": 3, "max_tokens": 4},
    {"temperature": 1.0, "prompt_logprobs": 2, "max_tokens": 3},
    {"temperature": 1.0, "min_tokens": 3, "eos_ids": EOS, "max_tokens": 6, **LIKELY},
    {"temperature": 1.0, "presence_penalty": 1.5, "repetition_penalty": 1.4, "max_tokens": 6},
    {"bad_word_ids": ((7,), (8, 9)), "allowed_token_ids": (7, 8, 9, 10), "max_tokens": 5},
)
"""While one of them runs, steps wait; they end before the others."""


def requests(kinds: tuple[dict[str, Any], ...], copies: int = 1) -> list[Submit]:
    made = []
    for i, kind in enumerate(kinds * copies):
        fields = {"max_tokens": 16, **kind}
        made.append(submit(f"{i}", PROMPTS[i % len(PROMPTS)], seed=50 + i, **fields))
    return made


def story(rig: Rig, all_requests: list[Submit]) -> Results:
    results = run(rig.engine, all_requests)
    rig.assert_empty()
    return results


def told(result: Result) -> tuple[Any, ...]:
    """Return all that a client hears of a choice, but when and how its work was scheduled."""
    assert result.error is None
    return result.ids, result.finish, result.logprobs, result.prompt_logprobs


@pytest.mark.parametrize("sizes", [{}, {"batch": 3}, {"blocks": 11, "batch": 5, "chunk": 3}], ids=str)
@pytest.mark.parametrize("kinds", [PLAIN, PLAIN + HELPED], ids=["plain", "helped"])
def test_clients_hear_the_same(llama: Path, kinds: tuple[dict[str, Any], ...], sizes: dict[str, Any]) -> None:
    plain, overlapped = (build(llama, overlap=overlap, **{"batch": 16} | sizes) for overlap in ("off", "on"))
    want, got = (story(rig, requests(kinds, 2)) for rig in (plain, overlapped))
    assert {at: told(result) for at, result in got.items()} == {at: told(result) for at, result in want.items()}
    assert {result.finish for result in got.values()} == {"stop", "length"}
    assert plain.tap.counts["followed"] == 0
    assert overlapped.tap.counts["followed"] > 15
    assert overlapped.preemptions > 0 or "blocks" not in sizes


def test_a_request_that_stopped_is_computed_once_too_often_and_leaves_nothing(llama: Path) -> None:
    """Without a stop no row is in vain: the length is known before."""
    wanted = requests(({"temperature": 2.5, "eos_ids": tuple(range(40, 120))},) * 6)
    rig = build(llama, overlap="on")
    results = story(rig, wanted)
    sampled = len(rig.tap.rows)
    stopped = [result for result in results.values() if result.finish == "stop"]
    assert stopped
    assert sampled == sum(len(result.ids) for result in results.values()) + sum(len(r.ids) < 16 for r in stopped)
    rig.tap.rows.clear()
    lengths = story(rig, requests(({"temperature": 2.5},) * 6))
    assert len(rig.tap.rows) == sum(len(result.ids) for result in lengths.values()) == 6 * 16


@pytest.mark.parametrize(
    ("overlap", "kinds", "sizes", "reasons"),
    [
        ("off", PLAIN, {}, {"off"}),
        ("on", PLAIN, {}, {"yes", "idle"}),
        ("on", HELPED[:1] + PLAIN, {}, {"yes", "host", "idle"}),
        ("on", PLAIN, {"blocks": 11, "batch": 5, "chunk": 3}, {"yes", "room", "idle"}),
    ],
)
def test_every_step_says_whether_it_overlapped_or_why_not(
    llama: Path, overlap: str, kinds: tuple[dict[str, Any], ...], sizes: dict[str, Any], reasons: set[str]
) -> None:
    rig = build(llama, overlap=overlap, **{"batch": 16} | sizes)
    seen: Counter[str | None] = Counter()
    results = run(rig.engine, requests(kinds), on_step=lambda report: seen.update((report.stats.overlap,)))
    assert all(result.error is None for result in results.values())
    seen.pop(None, None)
    assert sum(seen.values()) == rig.tap.counts["steps"]
    assert set(seen) == reasons, seen
    waited = seen["host"]
    assert waited in (0, 4), "four steps give the four tokens that are told with their probabilities"
    rig.engine.close()


def test_an_abort_in_flight_ends_what_it_names_only(llama: Path) -> None:
    want = story(build(llama, overlap="off"), requests(PLAIN[:3]))
    for steps in range(1, 12, 2):
        rig = build(llama, overlap="on")
        for request in requests(PLAIN[:3]):
            rig.engine.submit(request)
        heard: dict[tuple[str, int], list[int]] = {at: [] for at in want}
        for count in range(60):
            if count == steps:
                rig.engine.abort("1")
            for output in rig.step().outputs:
                assert (output.key, count >= steps) != ("1", True), "nothing is said after an abort"
                heard[output.key, output.choice] += output.ids
        rig.assert_empty()
        assert {at: ids for at, ids in heard.items() if at[0] != "1"} == {
            at: result.ids for at, result in want.items() if at[0] != "1"
        }
        assert heard["1", 0] == want["1", 0].ids[: len(heard["1", 0])]
        rig.engine.close()


def test_a_draft_model_makes_steps_wait(llama: Path) -> None:
    rig = build(llama, overlap="on", plugins={"draft": "ngram"})
    assert (rig.card.shape["depth"], rig.card.shape_origin["depth"]) == (1, "drafts need the tokens before them")
    assert build(llama, overlap="on").card.shape["depth"] == 2
    assert build(llama).card.shape_origin["depth"] == "the host computes"
