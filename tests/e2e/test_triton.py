"""The daemon with `attention = triton` in Triton's interpreter gives the ids of the plain backend."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd_client import Client
from inferd_client.results import Completion
from tests.e2e.harness import Served, idle, ready, serving
from tests.tiny import tiny_llama

pytestmark = [pytest.mark.daemon, pytest.mark.timeout(300)]

LOOP = [7, 8, 9, 10, 7, 8, 9, 10, 7, 8, 9]
"""What an n-gram draft continues."""
PROMPTS = [list(range(60, 99)), LOOP, list(range(60, 80)), [5]]
"""The third shares blocks with the first, the fourth is one token."""
MODELS = {
    "plain": {"plugins": {"attention": "reference", "draft": "none"}},
    "kernels": {"plugins": {"attention": "triton", "draft": "ngram"}},
    "int8": {"plugins": {"attention": "triton", "draft": "none"}, "engine": {"kv_format": "int8"}},
}
ENGINE = {"max_sequences": 3, "block_size": 8, "kv_blocks": 8, "chunk": 16, "threads": 1, "max_context": 64}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("TRITON_CACHE_DIR", f"{name}/cache")
        folder = tiny_llama(Path(name) / "plain", rope_theta=50.0)
        for other in MODELS:
            if other != "plain":
                (Path(name) / other).symlink_to(folder)
        config = {
            "preload": False,
            "engine": ENGINE | {"linear": "torch"},
            "plugin": {"draft": {"ngram": {"min_n": 1}}},
            "models": {model: {"path": str(Path(name) / model), **table} for model, table in MODELS.items()},
        }
        with serving(None, config) as daemon:
            yield daemon


@pytest.fixture(scope="module")
def client(served: Served) -> Client:
    return served.client()


def answers(client: Client, model: str, tokens: int) -> list[Completion]:
    """Ask all prompts at once, then the first again."""
    options: dict[str, Any] = {"model": model, "max_tokens": tokens, "ignore_eos": True, "seed": 11}
    streams = [
        client.generate(prompt, stream=True, temperature=0.8 * (i == 2), top_k=20, **options)
        for i, prompt in enumerate(PROMPTS)
    ]
    first = [stream.result() for stream in streams]
    return [*first, client.generate(PROMPTS[0], temperature=0, **options)]


def test_ids_equal_those_of_the_plain_backend(client: Client) -> None:
    """Mixed prefill, decode and verification, a prefix hit, and preemptions in a pool too small for all."""
    ready(client, "plain")
    want = answers(client, "plain", 10)
    status = ready(client, "kernels")
    assert status.plugins["attention"] == "triton"
    got = answers(client, "kernels", 10)
    assert [a.ids for a in got] == [a.ids for a in want]
    usage = [a.usage for a in got if a.usage]
    assert sum(u.drafted_tokens for u in usage) > 0
    assert usage[-1].cached_tokens >= 16
    assert sum(u.preemptions for u in usage) > 0
    idle(client, "kernels")


def test_int8_kv_takes_a_third_of_the_memory_and_answers_the_same(client: Client) -> None:
    plain = ready(client, "plain")
    status = ready(client, "int8")
    assert status.kv_bytes is not None
    assert plain.kv_bytes is not None
    # 16 one-byte values and a four-byte scale a head instead of 16 floats.
    assert status.kv_bytes * 64 == plain.kv_bytes * 20
    got, want = answers(client, "int8", 4), answers(client, "plain", 4)
    assert [a.ids for a in got] == [a.ids for a in want]
