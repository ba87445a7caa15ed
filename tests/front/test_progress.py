"""Every unfinished request of a client is heard of at least once a second, whatever state it is in."""

from __future__ import annotations

import time
from itertools import pairwise

from inferd.front.requests import PROBE_S, PROGRESS_S
from inferd.front.sessions import RECONNECT_GRACE_S
from inferd_client import protocol as p
from tests.front.harness import Raw, daemon, worker_pid

FAULTS = [{"match": "slowfill", "kind": "slow_prefill", "seconds": 600}]
GAPS = 3


def shortest_silences(client: Raw, requests: set[str]) -> dict[str, float]:
    """Return each request's shortest time without a word about it, of several: a busy machine lengthens some."""
    heard: dict[str, list[float]] = {request: [] for request in requests}
    while min(map(len, heard.values())) <= GAPS:
        message = client.receive()
        assert message is not None, heard
        if getattr(message, "id", None) in requests:
            heard[message.id].append(time.monotonic())
    return {request: min(after - before for before, after in pairwise(at)) for request, at in heard.items()}


def test_a_second_is_never_reached() -> None:
    """By design, as measured times are those of the machine too: news come, and the work of the gone ends."""
    assert PROGRESS_S < 1.0
    assert 1.5 * PROBE_S + RECONNECT_GRACE_S < 1.0  # the probe comes round twice in its time


def test_in_every_state_beside_a_busy_stream() -> None:
    config = {"text": {"timeout_s": 600.0}}
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
        silences = shortest_silences(client, {*filling, waiting, text})
        states = {r.id: r.state for r in client.status().requests}
        assert {states[r] for r in filling} == {"prefill"}
        assert (states[waiting], states[text], states[stream]) == ("waiting", "text", "decode")
        assert max(silences.values()) < 1.0, silences


def test_while_the_model_loads() -> None:
    with daemon(load_s=600, config={"daemon": {"drain_s": 0.1}}) as running:
        client = running.client()
        requests = {client.generate(f"r{i}") for i in range(3)}
        silences = shortest_silences(client, requests)
        assert {r.state for r in client.status().requests} == {"loading"}
        assert max(silences.values()) < 1.0, silences
