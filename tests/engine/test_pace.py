"""Prompt tokens beside decoders: as many as the measured costs leave room for, and no change to any answer."""

from __future__ import annotations

import random

import pytest

from inferd.engine.batch import Batch, StepOutput
from inferd.engine.pace import LEAST_TOKENS, STRETCH, Pace
from tests.engine.toy import Rig, expected

DECODE_S, TOKEN_S = 0.005, 0.0007
PROMPT = [i % 40 for i in range(1000)]


def taught(limit_s: float, decode_s: float = DECODE_S, token_s: float = TOKEN_S) -> Pace:
    pace = Pace(limit_s)
    for _ in range(20):
        pace.observe(1, 0, decode_s)
        pace.observe(0, 512, 512 * token_s)
    return pace


def test_the_bound_is_on_the_whole_step() -> None:
    assert taught(0.050).prefill_tokens(1, 512) == 64  # 45 ms at 0.7 ms a token, in whole 8s
    assert taught(0.120).prefill_tokens(1, 512) == 160
    assert taught(0.050).prefill_tokens(1, 40) == 40


def test_a_prompt_that_the_stretched_room_would_end_is_not_cut() -> None:
    pace = taught(0.050)
    assert STRETCH == 3
    lefts = {40: 64, 64: 64, 65: 65, 192: 192, 193: 64}  # three times 45 ms are 192 tokens of 0.7 ms
    assert {left: pace.prefill_tokens(1, 512, left) for left in lefts} == lefts
    assert pace.prefill_tokens(1, 100, 120) == 100
    assert taught(0.050, token_s=0.004).prefill_tokens(1, 512, 33) == 33, "though the room is less than the least chunk"
    assert taught(0.001).prefill_tokens(1, 512, LEAST_TOKENS + 1) == LEAST_TOKENS


def test_prompts_get_as_much_time_as_a_slow_decode_step() -> None:
    assert taught(0.050, decode_s=0.06).prefill_tokens(1, 512) == 80  # 60 ms at 0.7 ms a token, in whole 8s
    assert taught(0.050, decode_s=0.03).prefill_tokens(1, 512) == 40


def test_some_prompt_always_goes_on() -> None:
    assert taught(0.001).prefill_tokens(1, 512) == LEAST_TOKENS
    assert taught(0.050, token_s=1.0).prefill_tokens(1, 512) == LEAST_TOKENS
    assert taught(0.001).prefill_tokens(1, 7) == 7


@pytest.mark.parametrize("pace", [taught(0.0), Pace(0.050)], ids=["no bound", "nothing seen"])
def test_without_bound_or_knowledge_the_budget_stands(pace: Pace) -> None:
    assert pace.prefill_tokens(1, 512) == 512


def test_nobody_waits_where_nobody_decodes() -> None:
    assert taught(0.050).prefill_tokens(0, 512) == 512


def test_costs_are_told_apart_in_mixed_steps_and_followed() -> None:
    rng, pace = random.Random(1), Pace(0.05)
    for _ in range(200):
        decode, prefill = rng.choice([1, 8, 32]), rng.choice([0, 0, 64])
        pace.observe(decode, prefill, DECODE_S * decode**0.5 + TOKEN_S * prefill)
    assert pace.decode_s(32) == pytest.approx(DECODE_S * 32**0.5, rel=0.05)
    assert pace.decode_s(1) == pytest.approx(DECODE_S, rel=0.05)
    assert pace.token_s == pytest.approx(TOKEN_S, rel=0.1)
    for _ in range(40):
        pace.observe(1, 64, DECODE_S + 3 * TOKEN_S * 64)  # the context grew
    assert pace.token_s == pytest.approx(3 * TOKEN_S, rel=0.1)


def test_a_width_that_never_runs_without_prompts_is_learnt_from_mixed_steps() -> None:
    """So it is while a queue is never empty: what 30 rows cost must not all be put down to the prompt tokens."""
    rng, pace = random.Random(2), taught(0.05)
    for _ in range(200):
        tokens = rng.choice([32, 48, 64])
        pace.observe(30, tokens, 4 * DECODE_S + TOKEN_S * tokens)
    assert pace.decode_s(30) + 48 * pace.token_s == pytest.approx(4 * DECODE_S + 48 * TOKEN_S, rel=0.05)
    assert pace.decode_s(30) > 1.3 * DECODE_S
    assert pace.decode_s(1) == pytest.approx(DECODE_S, rel=0.01)


def test_one_step_that_the_system_held_up_says_little() -> None:
    pace = taught(0.050)
    pace.observe(1, 64, 10.0)
    assert pace.token_s < 2 * TOKEN_S


class Costly(Rig):
    """A rig whose steps take what the cost model of this file says, on its own clock."""

    def __init__(self, step_s: float) -> None:
        super().__init__(blocks=600, budget=512, chunk=512, batch=4, context=1100, step_s=step_s)
        run = self.executor.run
        self.gaps: list[float] = []

        def costly(batch: Batch) -> StepOutput:
            prefill = batch.num_tokens - batch.counts.decode
            elapsed = DECODE_S * bool(batch.counts.decode) + TOKEN_S * prefill
            self.clock.now += elapsed
            if batch.counts.decode:
                self.gaps.append(elapsed)
            return run(batch)._replace(elapsed_s=elapsed)

        self.executor.run = costly


@pytest.mark.parametrize(("step_s", "longest"), [(0.050, 0.052), (0.100, 0.102), (0.0, 0.4)])
def test_a_long_prompt_does_not_hold_up_who_decodes(step_s: float, longest: float) -> None:
    rig = Costly(step_s)
    rig.check_each_step = False
    rig.submit("first", [1, 2, 3], 60)
    for _ in range(4):
        rig.step()
    rig.submit("long", PROMPT, 4)
    rig.run()
    assert rig.results["first", 0].ids == expected([1, 2, 3], 0, 60)
    assert rig.results["long", 0].ids == expected(PROMPT, 0, 4)
    *others, last, most = sorted(rig.gaps)
    assert last <= longest
    assert last > 0.6 * (step_s or longest)  # no smaller steps than need be
    assert most <= STRETCH * longest, "the step that ends the prompt"
    assert len(others) > 20
