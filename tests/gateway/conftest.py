"""One fake daemon and one gateway for all tests here that leave them as they found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from inferd_client.testing import FakeDaemon
from tests.gateway.running import Running, gateway

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ANSWERS = [
    {"match": "hello", "reply": "Hi there, ünïcode!"},
    {"match": "count", "reply": "one two three four five"},
    {"match": "ponder", "reply": "<think>\nhmm, well\n</think>\n\nForty-two."},
    {"match": "weather in", "reply": f"Let me look.\n{CALL}\n{SECOND}"},
    {"match": "12 degrees", "reply": SECOND},
    {"match": "half past nine", "reply": "It is 12 degrees at half past nine."},
    {"match": "broken call", "reply": 'Look: <tool_call>{"name": "weather", "arguments": </tool_call> done'},
    {"match": "endless", "reply": "again and again, "},
]
FAULTS = [
    {"match": "slow prefill", "kind": "slow_prefill", "seconds": 1.5},
    {"match": "nan now", "kind": "nan"},
    {"match": "never answered", "kind": "silent"},
]
SCRIPT = {"answers": ANSWERS, "faults": FAULTS, "models": ["fake", "other"], "context": 4096}


@pytest.fixture(scope="package")
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon(SCRIPT) as daemon:
        daemon.wait_ready()
        yield daemon


@pytest.fixture(scope="package")
def running(daemon: FakeDaemon) -> Iterator[Running]:
    with gateway(daemon.runtime, keep_alive_s=0.15, max_body=200_000) as running:
        yield running


@pytest.fixture(scope="package")
def client(running: Running) -> Iterator[OpenAI]:
    with running.openai() as client:
        yield client
