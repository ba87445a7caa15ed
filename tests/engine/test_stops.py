"""Where a sequence ends, through the engine: EOS, stop ids, lengths, with and without drafts."""

from __future__ import annotations

import pytest

from tests.engine.toy import OracleDraft, Rig, expected

PROMPT = [5, 6, 7, 8, 9, 10, 11]
PLAIN = expected(PROMPT, 0, 24)


def until(stop: int, *, least: int = 0) -> list[int]:
    """The plain output up to the first `stop` that counts."""
    at = next(i for i, token in enumerate(PLAIN) if token == stop and i >= least)
    return PLAIN[: at + 1]


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("j", range(10))
def test_eos_in_the_middle_of_a_draft_block_ends_it(j, k):
    """1.7: the j-th generated id declared EOS gives what plain decoding gives."""
    drafter = OracleDraft(wrong=0.0) if k else None
    rig = Rig(drafter=drafter, max_draft=k)
    rig.submit("r", PROMPT, 20, eos_ids=(PLAIN[j],))
    rig.run()
    result = rig.results["r", 0]
    assert result.ids == until(PLAIN[j])
    assert (result.finish, result.stop_token) == ("stop", PLAIN[j])
    assert len(result.logprobs) == len(result.ids)
    assert result.accepted <= len(result.ids)
    assert bool(k) == bool(rig.executor.num_verified) or len(result.ids) == 1
    rig.assert_empty()


def test_ignore_eos_runs_on_but_stop_ids_still_stop():
    """3.12."""
    eos, stop = PLAIN[1], next(t for t in PLAIN if t not in PLAIN[:3])
    rig = Rig()
    rig.submit("all", PROMPT, 20, eos_ids=(eos,), ignore_eos=True)
    rig.submit("stop", PROMPT, 20, eos_ids=(eos,), ignore_eos=True, stop_token_ids=(stop,))
    rig.submit("both", PROMPT, 20, eos_ids=(eos,), stop_token_ids=(stop,))
    rig.run()
    assert rig.results["all", 0].ids == PLAIN[:20]
    assert rig.results["all", 0].finish == "length"
    assert rig.results["stop", 0].ids == until(stop)
    assert rig.results["both", 0].ids == until(eos)


def test_min_tokens_outlasts_a_stop_id():
    rig = Rig(drafter=OracleDraft(wrong=0.2), max_draft=3)
    rig.submit("r", PROMPT, 20, eos_ids=tuple(range(97)), min_tokens=4)
    rig.run()
    assert rig.results["r", 0].ids == PLAIN[:5]


@pytest.mark.parametrize(("length", "count"), [(31, 1), (30, 2)])
def test_an_unset_max_tokens_ends_with_the_context(length, count):
    """3.13, 3.14."""
    prompt = [i % 50 for i in range(length)]
    rig = Rig(context=32)
    rig.submit("r", prompt, None)
    rig.run()
    assert rig.results["r", 0].ids == expected(prompt, 0, count)
    assert rig.results["r", 0].finish == "length"
    rig.assert_empty()


@pytest.mark.parametrize(
    ("length", "count", "fields", "code", "field", "limit"),
    [
        (32, None, {}, "context_exceeded", "prompt", 32),
        (33, None, {}, "context_exceeded", "prompt", 32),
        (32, 1, {}, "context_exceeded", "prompt", 32),
        (30, 3, {}, "context_exceeded", "max_tokens", 32),
        (20, 6, {"blocks": 6}, "context_exceeded", "max_tokens", 25),
        (25, 1, {"blocks": 6}, "context_exceeded", "prompt", 25),
        (0, 4, {}, "invalid_param", "prompt", None),
    ],
)
def test_what_can_never_run_is_refused_with_numbers(length, count, fields, code, field, limit):
    """4.1, 4.7: at once, beside a good request that is not disturbed."""
    rig = Rig(context=32, **fields)
    rig.submit("good", PROMPT, 10)
    rig.submit("bad", [1] * length, count)
    rig.run(most_steps=40)
    error = rig.errors["bad"]
    assert (error.code, error.field, error.limit) == (code, field, limit)
    if limit:
        assert str(length) in error.message
    assert rig.results["good", 0].ids == PLAIN[:10]
    rig.assert_empty()


def test_a_request_that_just_fits_runs():
    rig = Rig(context=32, blocks=6)
    rig.submit("r", [1] * 20, 5)
    rig.run()
    assert rig.results["r", 0].ids == expected([1] * 20, 0, 5)


def test_prompt_logprobs_come_whole_with_the_first_output():
    """Over chunks, around a prefix that would hit, and through a preemption in between."""
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    rig = Rig(chunk=3, blocks=9)
    rig.submit("warm", prompt, 1)
    rig.run()
    rig.submit("other", PROMPT, 15)
    rig.submit("r", prompt, 12, prompt_logprobs=0)
    rig.run()
    found = rig.results["r", 0].prompt_logprobs
    assert found is not None
    assert found[0] is None
    assert [-entry.logprob for entry in found[1:]] == list(range(1, len(prompt)))
    assert rig.results["r", 0].cached == 0
    assert rig.results["r", 0].ids == expected(prompt, 0, 12)
    assert rig.results["r", 0].preemptions > 0


def test_prompt_logprobs_survive_a_preemption_in_mid_prefill():
    prompt = list(range(20, 32))
    rig = Rig(chunk=1, blocks=7)
    rig.submit("o1", [1, 2, 3], 14)
    rig.submit("o2", [4, 5, 6], 14)
    rig.submit("r", prompt, 3, prompt_logprobs=0)
    known = 0
    while not rig.scheduler.requests["r"][0].preemptions:
        known = len(rig.scheduler.requests["r"][0].prompt_logprobs)
        rig.step()
    assert 1 < known < len(prompt)
    rig.run()
    found = rig.results["r", 0].prompt_logprobs
    assert found is not None
    assert [-entry.logprob for entry in found[1:]] == list(range(1, len(prompt)))
    rig.assert_empty()


def test_prompt_logprobs_of_one_token():
    rig = Rig()
    rig.submit("r", [4], 2, prompt_logprobs=1)
    rig.run()
    assert rig.results["r", 0].prompt_logprobs == (None,)
