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
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 30, "seed": 5},
    {"temperature": 0.8, "top_k": 20, "seed": 11},
    {"temperature": 1.3, "top_p": 0.85, "min_p": 0.01, "seed": 2**62 + 7},
]
"""Of the prompts in turn."""
TORCH = {"linear": "torch"}
TRITON = {"linear": "triton"}
"""Everything as on a GPU: matrix products, norms, gates, and the choice of tokens."""


def model(engine: dict[str, Any], attention: str, draft: str = "none", quantizer: str = "") -> dict[str, Any]:
    plugins = {"attention": attention, "draft": draft} | ({"quantizer": quantizer} if quantizer else {})
    return {"engine": engine, "plugins": plugins}


INT8_MOVES = 0.1
"""Bound on what int8 keys and values do to a log-probability of these models."""
MODELS = {
    "plain": model(TORCH, "reference"),
    "attention": model(TORCH, "triton", "ngram"),
    "kernels": model(TRITON, "triton"),
    "drafts": model(TRITON, "triton", "ngram"),
    "int8": model(TORCH | {"kv_format": "int8"}, "triton"),
    "int4 plain": model(TORCH, "reference", quantizer="int4"),
    "int4 kernels": model(TRITON, "triton", quantizer="int4"),
    "fp8 kernels": model(TRITON, "triton", quantizer="fp8"),
}
ENGINE = {"max_sequences": 3, "block_size": 8, "kv_blocks": 8, "chunk": 16, "threads": 1, "max_context": 64}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("TRITON_CACHE_DIR", f"{name}/cache")
        folder = tiny_llama(Path(name) / "plain", rope_theta=50.0, layers=1)
        for other in MODELS:
            if other != "plain":
                (Path(name) / other).symlink_to(folder)
        config = {
            "preload": False,
            "engine": ENGINE,
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
    options: dict[str, Any] = {"model": model, "max_tokens": tokens, "ignore_eos": True}
    streams = [
        client.generate(prompt, stream=True, **sampling, **options)
        for prompt, sampling in zip(PROMPTS, SAMPLED, strict=True)
    ]
    first = [stream.result() for stream in streams]
    return [*first, client.generate(PROMPTS[0], temperature=0, **options)]


def ids(answered: list[Completion]) -> list[list[int]]:
    return [list(answer.ids) for answer in answered]


def few(client: Client, model: str) -> list[list[int]]:
    """Return the ids of two short answers, one after the other."""
    options: dict[str, Any] = {"model": model, "max_tokens": 4, "ignore_eos": True}
    return [list(client.generate(LOOP[:5], **sampling, **options).ids) for sampling in SAMPLED[:2]]


@pytest.fixture(scope="module")
def plain(client: Client) -> list[list[int]]:
    ready(client, "plain")
    return ids(answers(client, "plain", 10))


@pytest.mark.parametrize("name", [pytest.param("attention", marks=pytest.mark.full), "kernels", "drafts"])
def test_ids_equal_those_of_the_plain_backend(client: Client, plain: list[list[int]], name: str) -> None:
    """Mixed prefill, decode and verification, a prefix hit, and preemptions in a pool too small for all."""
    status = ready(client, name)
    assert status.plugins["attention"] == "triton"
    got = answers(client, name, 10)
    assert ids(got) == plain
    usage = [a.usage for a in got if a.usage]
    assert (sum(u.drafted_tokens for u in usage) > 0) == (name != "kernels")
    assert usage[-1].cached_tokens >= 16
    assert sum(u.preemptions for u in usage) > 0
    idle(client, name)


def test_rows_that_the_host_reads_get_the_same_tokens(client: Client) -> None:
    """Penalties, biases and log-probabilities, beside a row that the device alone chooses for."""
    options: list[dict[str, Any]] = [
        {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.3},
        {"temperature": 1.0, "seed": 4, "logit_bias": {7: 2.0}, "top_p": 0.9},
        {"temperature": 0.0, "logprobs": 3},
    ]
    got: dict[str, list[Completion]] = {}
    for name in ("plain", "kernels"):
        ready(client, name)
        streams = [client.generate(LOOP, model=name, max_tokens=6, ignore_eos=True, stream=True, **o) for o in options]
        got[name] = [stream.result() for stream in streams]
    assert ids(got["kernels"]) == ids(got["plain"])


def test_int4_weights_give_the_ids_of_their_dequantised_values(client: Client) -> None:
    wide = ready(client, "int4 plain")
    packed = ready(client, "int4 kernels")
    got, want = (few(client, name) for name in ("int4 kernels", "int4 plain"))
    assert got == want
    assert packed.weight_bytes is not None
    assert wide.weight_bytes is not None
    assert packed.weight_bytes * 2 < wide.weight_bytes
    assert (packed.exactness, packed.exactness_by) == ("approximate", "quantizer int4")


def test_fp8_weights_say_that_rows_are_rounded_as_well(client: Client) -> None:
    status = ready(client, "fp8 kernels")
    assert status.exactness == "approximate"
    assert "quantizer fp8" in status.exactness_by
    assert "engine.linear" in status.exactness_by
    assert [len(tokens) for tokens in few(client, "fp8 kernels")] == [4, 4]


def test_int8_kv_takes_a_third_of_the_memory_and_moves_logits_by_little(client: Client) -> None:
    """Ids are equal wherever the best token leads by more than that: of random models many leads are smaller."""
    plain = ready(client, "plain")
    status = ready(client, "int8")
    assert status.kv_bytes is not None
    assert plain.kv_bytes is not None
    # 16 one-byte values and a four-byte scale a head instead of 16 floats.
    assert status.kv_bytes * 64 == plain.kv_bytes * 20
    moved: list[float] = []
    for start in range(20, 60, 10):
        options: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 5}
        want, got = (client.generate(list(range(start, start + 30)), model=m, **options) for m in ("plain", "int8"))
        before, after = (dict(answer.choices[0].logprobs[0].top) for answer in (want, got))
        both = before.keys() & after.keys()
        moved.append(max(abs(before[token] - after[token]) for token in both))
        ranked = sorted(before.values())
        if ranked[-1] - ranked[-2] > 2 * INT8_MOVES:
            assert want.ids == got.ids
    assert 0 < max(moved) < INT8_MOVES
