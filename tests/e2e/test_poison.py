"""A bad request beside good ones (H4): the good ones' ids are unchanged, and the daemon answers a third."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferd_client import Client, Code, DaemonError
from tests.e2e import oracle
from tests.e2e.conftest import CONTEXT
from tests.e2e.trap_plugin.inferd_trap import NAN

pytestmark = pytest.mark.daemon

GOOD = ([31, 9, 250], list(range(40, 60)), [5, 118, 6, 200, 7])
COUNT = 8


@pytest.fixture(scope="module")
def answers(tiny: Path) -> list[list[int]]:
    return [list(wanted.ids) for wanted in oracle.of_folder(tiny, GOOD, COUNT)]


BAD: list[tuple[str, Any, dict[str, Any], Code]] = [
    ("id past the vocabulary", [1, 290], {}, Code.INVALID_PARAM),
    ("negative id", [1, -1], {}, Code.INVALID_PARAM),
    ("id past 63 bits", [2**63], {}, Code.INVALID_PARAM),
    ("no ids", [], {}, Code.INVALID_PARAM),
    ("no text", "", {}, Code.INVALID_PARAM),
    ("bias past the vocabulary", [7], {"logit_bias": {290: 1.0}}, Code.INVALID_PARAM),
    ("stop id past the vocabulary", [7], {"stop_token_ids": [290]}, Code.INVALID_PARAM),
    ("allowed id past the vocabulary", [7], {"allowed_token_ids": [290]}, Code.INVALID_PARAM),
    ("nothing left", [7], {"allowed_token_ids": [1], "min_tokens": 2}, Code.NUMERIC_ERROR),
    ("prompt as long as the context", [7] * CONTEXT, {}, Code.CONTEXT_EXCEEDED),
    ("prompt and output too long", [7] * (CONTEXT - 10), {"max_tokens": 11}, Code.CONTEXT_EXCEEDED),
    ("text too long", "x " * CONTEXT, {}, Code.CONTEXT_EXCEEDED),
    ("NaN from a plugin", [NAN, 40, 41], {}, Code.NUMERIC_ERROR),
    ("NaN in a long prompt", [NAN, *[40] * 300], {"n": 3}, Code.NUMERIC_ERROR),
    ("NaN in prompt log-probabilities", [NAN, *[40] * 30], {"prompt_logprobs": 2}, Code.NUMERIC_ERROR),
]


@pytest.mark.parametrize(("prompt", "options", "code"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_request_hurts_nobody(
    client: Client, answers: list[list[int]], prompt: Any, options: dict[str, Any], code: Code
) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": COUNT}
    first = client.generate(GOOD[0], stream=True, **greedy)
    streams = [first, client.generate(GOOD[1], stream=True, **greedy)]
    with pytest.raises(DaemonError) as caught:
        client.generate(prompt, **options)
    assert caught.value.code == code, caught.value
    assert not caught.value.retry_safe or code != Code.NUMERIC_ERROR
    assert [s.result().ids[: len(a)] for s, a in zip(streams, answers, strict=False)] == answers[:2]
    assert client.generate(GOOD[2], **greedy).ids[: len(answers[2])] == answers[2]


def test_blocks_of_a_poisoned_prompt_are_not_reused(client: Client, tiny: Path) -> None:
    """The prefix before the poison stays good; what was computed with it does not come back from the cache."""
    from tests.e2e.trap_plugin.inferd_trap import SLOW

    prefix = [90 + i % 40 for i in range(64)]
    want = oracle.of_folder(tiny, [prefix], COUNT)[0]
    for _ in range(2):
        with pytest.raises(DaemonError) as caught:
            client.generate([NAN, *prefix], max_tokens=2)
        assert caught.value.code == Code.NUMERIC_ERROR
    got = client.generate(prefix, max_tokens=COUNT, temperature=0, ignore_eos=True)
    assert tuple(got.ids[: len(want.ids)]) == want.ids
    assert SLOW not in want.ids


def test_wild_but_valid_requests_end(client: Client) -> None:
    """Extreme values that are in range: each is answered, and with sound ids."""
    wild: list[dict[str, Any]] = [
        {"temperature": 100.0},
        {"temperature": 1e-30},
        {"top_k": 2**31 - 1},
        {"top_p": 1e-300},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100.0, "presence_penalty": -100.0, "frequency_penalty": 100.0},
        {"logit_bias": dict.fromkeys(range(290), 1000.0)},
        {"logit_bias": dict.fromkeys(range(290), -1000.0)},
        {"seed": 2**63 - 1, "n": 16},
        {"logprobs": 20, "prompt_logprobs": 20},
        {"bad_words": ["x" * 256] * 256},
        {"stop": ["\x00", "😀" * 200, "\ufffd"]},
    ]
    streams = [client.generate([7, 8, 9], stream=True, max_tokens=5, **options) for options in wild]
    for stream, options in zip(streams, wild, strict=True):
        result = stream.result()
        assert result.finish in ("stop", "length"), options
        assert all(0 <= i < 290 for choice in result.choices for i in choice.ids)
