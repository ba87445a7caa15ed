"""Where text ends when one step brings many tokens, and what a client then has: text, ids, usage agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.front.harness import Daemon, Raw, daemon, eventually, worker_pid

FAULTS = [{"match": "huge", "kind": "huge"}]
"""1,000 tokens a step: `huge` again and again."""


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon(context=100_000, faults=FAULTS) as running:
        worker_pid(running.client("warm"))
        yield running


@pytest.fixture
def client(served: Daemon) -> Raw:
    return served.client()


@pytest.mark.parametrize(
    ("stop", "least", "include", "text", "used"),
    [
        (("eh",), 0, False, "hug", 5),
        (("eh",), 0, True, "hugeh", 5),
        (("eh",), 4, False, "hug", 5),
        (("eh",), 5, False, "hugehug", 9),
        (("geh", "uge"), 0, False, "h", 4),
        (("e" * 9, "gehugeh"), 0, False, "hu", 9),
        (("ehugeh" * 30, "uge"), 1500, False, "huge" * 375 + "h", 1504),
    ],
)
def test_nothing_after_a_stop_string_is_told_or_counted(
    client: Raw, stop: tuple[str, ...], least: int, include: bool, text: str, used: int
) -> None:
    request = client.generate("huge", stop=stop, include_stop=include, min_tokens=least, ignore_eos=True, logprobs=0)
    done = client.finish(request)
    tokens = client.tokens(request)
    ids = [i for m in tokens for i in m.ids]
    assert client.text(request) == text
    assert bytes(ids).decode() == ("huge" * 376)[:used]
    assert sum(len(m.logprobs or ()) for m in tokens) == used
    assert done.usage.completion_tokens == used
    assert done.finish[0].reason == "stop"
    assert done.finish[0].stop in stop
    eventually(lambda: client.status().models[0].running == 0)


@pytest.mark.parametrize(("cap", "reason"), [(4, "length"), (5, "stop"), (6, "stop")])
def test_a_stop_string_inside_the_length_wins(client: Raw, cap: int, reason: str) -> None:
    text, done = client.run("huge", stop=("eh",), ignore_eos=True, max_tokens=cap)
    assert (done.reason, text) == (reason, "huge" if reason == "length" else "hug")
    assert done.usage.completion_tokens == min(cap, 5)


@pytest.mark.parametrize(("text", "cap", "reason"), [("", 1, "stop"), ("", 2, "stop"), ("a", 1, "length")])
def test_one_token_and_an_end_as_the_first_token(text: str, cap: int, reason: str) -> None:
    with daemon(reply=text) as running:
        client = running.client()
        said, done = client.run("x", max_tokens=cap)
        assert (said, done.reason, done.usage.completion_tokens) == (text, reason, 1)
        assert done.timings.tpot_s is None


def test_text_never_runs_ahead_of_its_ids(client: Raw) -> None:
    """A delta may lag behind the ids while a stop is possible; at the end both are whole."""
    request = client.generate("huge", stop=("hugehugh", "\u00e9"), ignore_eos=True, max_tokens=2500)
    client.finish(request)
    tokens, text, ids = client.tokens(request), "", []
    assert len(tokens) > 2
    for message in tokens:
        text, ids = text + message.text, ids + list(message.ids)
        assert bytes(ids).decode().startswith(text)
    assert text == bytes(ids).decode() == "huge" * 625
