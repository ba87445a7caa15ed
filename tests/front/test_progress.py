"""Every unfinished request of a client is heard of at least once a second, whatever state it is in."""

from __future__ import annotations

import time

from inferd_client import protocol as p
from tests.front.harness import Raw, daemon, worker_pid

FAULTS = [{"match": "slowfill", "kind": "slow_prefill", "seconds": 60}]
WATCH_S = 3.2
MOST_S = 1.05
"""A second, and what reading the answer takes on a busy machine."""


def longest_silences(client: Raw, requests: set[str], seconds: float) -> dict[str, float]:
    """Read for a while; return each request's longest time without a word about it."""
    start = time.monotonic()
    last = dict.fromkeys(requests, start)
    longest = dict.fromkeys(requests, 0.0)
    while (now := time.monotonic()) < start + seconds:
        message = client.receive(start + seconds - now)
        if getattr(message, "id", None) in requests:
            now = time.monotonic()
            longest[message.id], last[message.id] = max(longest[message.id], now - last[message.id]), now
    return {request: max(silence, start + seconds - last[request]) for request, silence in longest.items()}


def test_in_every_state_beside_a_busy_stream() -> None:
    config = {"text": {"timeout_s": 60.0}}
    with daemon(config=config, delay_s=0.01, max_sequences=3, context=100_000, faults=FAULTS) as running:
        client = running.client()
        worker_pid(client)
        stream = client.generate("abc", ignore_eos=True)
        client.until(stream, p.Tokens)
        filling = [client.generate(f"slowfill {i}") for i in range(2)]
        for request in filling:
            client.until(request, p.Accepted)
        waiting = client.generate("w")
        client.until(waiting, p.Accepted)
        text = client.generate("<hang>")
        silences = longest_silences(client, {*filling, waiting, text}, WATCH_S)
        states = {r.id: r.state for r in client.status().requests}
        assert {states[r] for r in filling} == {"prefill"}
        assert (states[waiting], states[text], states[stream]) == ("waiting", "text", "decode")
        assert max(silences.values()) < MOST_S, silences


def test_while_the_model_loads() -> None:
    with daemon(load_s=20, config={"daemon": {"drain_s": 0.1}}) as running:
        client = running.client()
        requests = {client.generate(f"r{i}") for i in range(3)}
        silences = longest_silences(client, requests, 2.2)
        assert {r.state for r in client.status().requests} == {"loading"}
        assert max(silences.values()) < MOST_S, silences
