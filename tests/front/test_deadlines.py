"""Deadlines and queue time-outs in every state a request can be in before and inside the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from inferd_client import protocol as p
from tests.front.harness import Daemon, Raw, daemon, eventually, worker_pid

LIMIT_S = 0.7
LATE_S = 30.0
"""How much later than its limit a request may be told where the machine pauses; what it asks for takes longer."""
TRIES = 20
"""A pause longer than the limit hides the state a request was in: it is asked again."""
FAULTS = [
    {"match": "slowfill", "kind": "slow_prefill", "seconds": 600},
    {"match": "silent", "kind": "silent"},
    {"match": "hang", "kind": "hang"},
]


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon(
        delay_s=0.005, max_sequences=4, context=100_000, faults=FAULTS, config={"text": {"timeout_s": 4.0}}
    ) as running:
        worker_pid(running.client("warm"))
        yield running


def refused_in_time(client: Raw, request: str, field: str, start: float) -> p.Error:
    error = client.finish(request)
    assert isinstance(error, p.Error)
    assert (error.code, error.field) == (p.Code.DEADLINE_EXCEEDED, field), error
    assert LIMIT_S <= time.monotonic() - start < LIMIT_S + LATE_S
    eventually(lambda: not any(r.id == request for r in client.status().requests))
    return error


@pytest.mark.parametrize(
    ("prompt", "state"),
    [("<hang>", "text"), ("slowfill", "prefill"), ("abc", "decode"), ("silent", "waiting")],
)
def test_a_deadline_holds_in_every_state(served: Daemon, prompt: str, state: str) -> None:
    client = served.client()
    for _ in range(TRIES):
        start = time.monotonic()
        request = client.generate(prompt, ignore_eos=True, deadline_ms=int(LIMIT_S * 1000))
        states = states_until_the_end(client, request)
        error = refused_in_time(client, request, "deadline_ms", start)
        if state in states:
            break
    assert state in states
    assert (error.usage.completion_tokens > 0 if error.usage else 0) == (state == "decode")
    assert client.run("next", deadline_ms=60_000)[0] == "next"


def states_until_the_end(client: Raw, request: str) -> list[str]:
    states: list[str] = []
    while not isinstance(message := client.receive(0.02), p.Error):
        if message is not None:
            client.inbox.append(message)
        states += [r.state for r in client.status().requests if r.id == request]
    client.inbox.append(message)
    return states


def started(client: Raw) -> str:
    """Return an endless request that runs; its own time in the queue is limited, which must not end it later."""
    while True:
        request = client.generate("r", ignore_eos=True, queue_timeout_ms=int(LIMIT_S * 1000))
        if isinstance(client.until(request, (p.Tokens, p.Error)), p.Tokens):
            return request


@pytest.mark.parametrize("field", ["deadline_ms", "queue_timeout_ms"])
def test_limits_hold_while_others_have_the_slots(served: Daemon, field: str) -> None:
    client = served.client()
    running = [started(client) for _ in range(4)]
    start = time.monotonic()
    waiting = client.generate("w", **{field: int(LIMIT_S * 1000)})
    refused_in_time(client, waiting, field, start)
    for request in running:
        client.call(p.Cancel(id="c" + request, request=request))
        assert client.finish(request).reason == "cancelled"


@pytest.mark.parametrize("field", ["deadline_ms", "queue_timeout_ms"])
def test_limits_hold_while_the_model_loads(field: str) -> None:
    with daemon(load_s=1.5) as running:
        client, start = running.client(), time.monotonic()
        request = client.generate("x", **{field: int(LIMIT_S * 1000)})
        refused_in_time(client, request, field, start)
        assert client.run("patient")[0] == "patient"


def test_a_deadline_holds_in_an_engine_that_hangs() -> None:
    with daemon(faults=FAULTS) as running:
        client = running.client()
        worker_pid(client)
        start = time.monotonic()
        request = client.generate("hang", deadline_ms=int(LIMIT_S * 1000))
        refused_in_time(client, request, "deadline_ms", start)
