"""Values of a wrong type or size straight on the wire: one refused message, no memory, nobody else hurt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from inferd.front.errors import Refusal
from inferd.front.validate import check_prompt
from inferd.link import ModelCard
from inferd_client import protocol as p
from tests.front.harness import Daemon, Raw, daemon, worker_pid
from tests.front.test_sessions import _rss


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon() as running:
        worker_pid(running.client("warm"))
        yield running


@pytest.fixture
def client(served: Daemon) -> Raw:
    return served.client()


USER = {"role": "user", "content": "x"}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": [value]} if levels > 100 else {"a": value}
    return value


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 7}, "prompt"),
    ({"prompt": None, "prompt_ids": "abc"}, "prompt_ids"),
    ({"prompt": None, "prompt_ids": [1.5]}, "prompt_ids"),
    ({"prompt": None, "prompt_ids": [True]}, "prompt_ids"),
    ({"prompt": None, "messages": [{"role": "user", "content": 5}]}, "messages"),
    ({"prompt": None, "messages": [{"role": "user", "content": "x", "extra": 1}]}, "messages"),
    ({"sampling": {"logit_bias": {"x": 1.0}}}, "sampling.logit_bias"),
    ({"sampling": {"logit_bias": {-1: 1.0}}}, "sampling.logit_bias"),
    ({"sampling": {"logit_bias": {1: "y"}}}, "sampling.logit_bias"),
    ({"sampling": {"logit_bias": {1: float("inf")}}}, "sampling.logit_bias"),
    ({"sampling": {"stop": "abc"}}, "sampling.stop"),
    ({"sampling": {"stop": ["x"] * 1_000_000}}, "sampling.stop"),
    ({"sampling": {"n": 2.5}}, "sampling.n"),
    ({"sampling": {"n": 10**9}}, "sampling.n"),
    ({"sampling": {"seed": -1}}, "sampling.seed"),
    ({"sampling": {"seed": 2**64 - 1}}, "sampling.seed"),
    ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
    ({"sampling": {"temperature": float("inf")}}, "sampling.temperature"),
    ({"sampling": {"min_tokens": 10**9, "max_tokens": 4}}, "sampling.min_tokens"),
    ({"prompt": None, "messages": [{"role": "r" * 257, "content": "x"}]}, "messages[0].role"),
    ({"prompt": None, "messages": [{**USER, "name": "n" * 257}]}, "messages[0].name"),
    ({"prompt": None, "messages": [{**USER, "tool_calls": [{}] * 129}]}, "messages[0].tool_calls"),
    ({"prompt": None, "messages": [{**USER, "tool_calls": [deep(33)]}]}, "messages[0].tool_calls"),
    ({"prompt": None, "messages": [USER] * 4097}, "messages"),
    ({"prompt": None, "messages": [USER], "tools": [{}] * 129}, "tools"),
    ({"prompt": None, "messages": [USER], "tools": [deep(33)]}, "tools"),
    ({"prompt": None, "messages": [USER], "tools": [deep(200)]}, "tools"),
    ({"prompt": None, "messages": [USER], "template_args": dict.fromkeys(map(str, range(65)))}, "template_args"),
    ({"prompt": None, "messages": [USER], "template_args": {"a" * 257: 1}}, "template_args"),
    ({"prompt": None, "messages": [USER], "template_args": {"a": [1]}}, "template_args.a"),
    ({"keep_alive_s": float("nan")}, "keep_alive_s"),
    ({"priority": "high"}, "priority"),
    ({"deadline_ms": -5}, "deadline_ms"),
    ({"model": "a\0b"}, "model"),
    ({"model": "m" * 10_000}, "model"),
    ({"temprature": 1.0}, "temprature"),
]


@pytest.mark.parametrize(("fields", "field"), WRONG, ids=[f"{i}-{field}" for i, (_, field) in enumerate(WRONG)])
def test_a_wrong_value_is_named(client: Raw, fields: dict[str, Any], field: str) -> None:
    good = client.generate("good")
    raw = {"type": "generate", "id": "bad", "prompt": "x", **fields}
    client.data.send_multipart([p.HEADER, msgspec.msgpack.encode({k: v for k, v in raw.items() if v is not None})])
    error = client.until("bad", p.Error)
    assert error.code == p.Code.INVALID_PARAM
    assert (error.field or "").startswith(field), error
    client.finish(good)
    assert client.text(good) == "good"


def test_a_null_where_none_is_allowed_is_named(client: Raw) -> None:
    raw = {"type": "generate", "id": "null", "prompt": "x", "sampling": None}
    client.data.send_multipart([p.HEADER, msgspec.msgpack.encode(raw)])
    error = client.until("null", p.Error)
    assert (error.code, error.field) == (p.Code.INVALID_PARAM, "sampling")


def test_what_is_just_within_the_limits_is_served(client: Raw) -> None:
    turn = p.Message(role="r" * 256, content="x", tool_calls=[{"function": deep(31)}] * 128)
    tools, arguments = [deep(32)] * 128, dict.fromkeys(map(str, range(64)))
    client.send(p.Render(id="most", messages=[turn], tools=tools, template_args=arguments))
    assert client.until("most", (p.Rendered, p.Error)).text


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (p.Load(id="c", model="fake", keep_alive_s=float("nan")), "keep_alive_s"),
        (p.Drain(id="c", timeout_s=float("nan")), "timeout_s"),
        (p.Load(id="c", model="x" * 513), "model"),
        (p.Unload(id="c", model="a\0b"), "model"),
    ],
)
def test_calls_of_the_control_socket_are_checked_too(client: Raw, call: Any, field: str) -> None:
    error = client.call(call)
    assert (error.code, error.field) == (p.Code.INVALID_PARAM, field)
    assert client.run("goes on")[0] == "goes on"


def test_unfinished_requests_hold_a_bounded_number_of_bytes() -> None:
    """A full queue of the largest prompts would be gigabytes."""
    with daemon(load_s=1.5, context=10**7, config={"daemon": {"max_pending_bytes": 1_000_000}}) as running:
        client = running.client()
        first = client.generate("x" * 60_000, max_tokens=1)
        second = client.generate("y" * 60_000, max_tokens=1)
        error = client.finish(second)
        assert (error.code, error.retry_safe) == (p.Code.OVERLOADED, True)
        assert "daemon.max_pending_bytes" in error.message
        assert error.retry_after_ms
        client.send(p.Tokenize(id="t", text="z" * 60_000))
        assert client.until("t", p.Error).code == p.Code.OVERLOADED
        assert isinstance(client.finish(first), p.Done)
        for i in range(3):  # what ended is given back, by whatever way it ended
            client.send(p.Tokenize(id=f"t{i}", text="z" * 60_000))
            assert client.until(f"t{i}", p.Tokenized)
            request = client.generate("x" * 60_000, ignore_eos=True)
            client.until(request, p.Accepted)
            client.call(p.Cancel(id=f"c{i}", request=request))
            client.finish(request)


LYING = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff" + b"x" * 1000,
    b"\xdf\xff\xff\xff\xff",
    b"\x82\xa4type\xa8generate\xa6prompt\xdb\xff\xff\xff\xff",
    b"\x82\xa4type\xa8generate\xaaprompt_ids\xdd\xff\xff\xff\xff" + b"\x01" * 1000,
    b"\x91" * 500_000,
    b"\x81\xa4type" * 100_000,
]


def test_lengths_that_lie_and_deep_nesting_cost_no_memory(served: Daemon, client: Raw) -> None:
    before, count = _rss(served.pid), client.status().counters.get("inferd_bad_frames_total", 0)
    for _ in range(5):
        for body in LYING:
            client.data.send_multipart([p.HEADER, body])
            client.receive()
    client.data.send_multipart([p.HEADER, *[b""] * 5])
    assert client.run("fine")[0] == "fine"
    assert client.status().counters["inferd_bad_frames_total"] == count + 5 * len(LYING) + 1
    assert _rss(served.pid) - before < 8 << 20


@pytest.mark.parametrize(
    ("prompt", "wanted", "outcome"),
    [(80, 1, 1), (80, None, 1), (81, None, "prompt_ids"), (81, 1, "prompt_ids"), (60, 21, 21), (60, 22, "max_tokens")],
)
def test_a_pool_smaller_than_the_context_is_the_limit(prompt: int, wanted: int | None, outcome: int | str) -> None:
    """4.1: the last token needs no KV, so five blocks of 16 serve 81 tokens."""
    card = ModelCard(
        architecture="",
        dtype="",
        device="",
        vocab_size=10,
        context=1000,
        eos_ids=(),
        pieces=[],
        special_ids=(),
        plugins={},
        manifest=(),
        shape={"num_blocks": 5, "block_size": 16},
    )
    message = p.Generate(id="r", prompt_ids=[1] * prompt, sampling=p.SamplingParams(max_tokens=wanted))
    if isinstance(outcome, int):
        assert check_prompt(message, [1] * prompt, card) == outcome
        return
    with pytest.raises(Refusal) as caught:
        check_prompt(message, [1] * prompt, card)
    assert caught.value.code == p.Code.CONTEXT_EXCEEDED
    assert (caught.value.field or "").endswith(outcome)
    assert caught.value.limit == 81
    assert str(prompt) in caught.value.message
    assert "81" in caught.value.message
