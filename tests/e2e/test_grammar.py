"""Structured output over ZeroMQ: the real daemon, harmful grammars beside good requests, and the default model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from inferd_client import Client, GrammarInvalid
from tests.e2e.harness import Served, idle, ready, serving
from tests.front.test_grammars import OVERFLOW
from tests.grammar.judge import PERSON, SCHEMAS
from tests.smollm2 import smollm2_path
from tests.tiny import tiny_llama

FREE: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 60, "logprobs": 1}
BOMBS: list[dict[str, Any]] = [
    {"grammar": OVERFLOW.text},
    {"regex": "(" * 100_000},
    {"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}}},
    {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
    {"json_schema": {"allOf": [{"uniqueItems": True}, {"not": {}}]}},
    {"grammar": "start: <[70000]>"},
    {"regex": "(?=a)"},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    model = tiny_llama(tmp_path_factory.mktemp("grammar") / "tiny", context=1024)
    config = {"engine": {"threads": 1, "max_sequences": 8}, "grammar": {"timeout_s": 0.3}}
    with serving(model, config) as served:
        ready(served.client(), str(model))
        yield served, str(model)


def refusal(client: Client, bomb: dict[str, Any]) -> tuple[str | None, str]:
    with pytest.raises(GrammarInvalid) as caught:
        client.generate("x", max_tokens=5, **bomb)
    return getattr(caught.value, "field", None), str(caught.value)


@pytest.mark.daemon
def test_harmful_grammars_hurt_nobody_else(served: tuple[Served, str]) -> None:
    """Good requests before, beside and after them, with and without grammars, get the same to the bit."""
    daemon, model = served
    client = daemon.client()
    pid = daemon.children()["inferd.engine.worker"]

    def good() -> list[Any]:
        with ThreadPoolExecutor(3) as pool:
            free = pool.submit(client.generate, "hello", **FREE)
            bound = pool.submit(client.generate, "hello", json_schema=PERSON, n=2, **FREE | {"max_tokens": 150})
            other = pool.submit(daemon.client().generate, "hello", regex="(ab){2,4}", **FREE)
            results = [free.result(), bound.result(), other.result()]
        return [[(c.text, c.ids, c.logprobs, c.finish) for c in result.choices] for result in results]

    before = good()
    with ThreadPoolExecutor(len(BOMBS) + 1) as pool:
        beside = pool.submit(good)
        told = list(pool.map(lambda bomb: refusal(daemon.client(), bomb), BOMBS))
    assert beside.result() == good() == before
    for (field, message), bomb in zip(told, BOMBS, strict=True):
        assert field == next(iter(bomb))
        assert message.startswith(f"{field}: ")
    assert daemon.children()["inferd.engine.worker"] == pid
    idle(client, model)


@pytest.mark.daemon
def test_streams_stops_limits_and_prompts_of_ids(served: tuple[Served, str]) -> None:
    client = served[0].client()
    options: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    with client.generate([40, 41], stream=True, regex="(?:ab){6}", **options) as stream:
        pieces = [piece.text for piece in stream]
    assert "".join(pieces) == "ab" * 6
    assert len(pieces) > 3
    assert client.generate("x", regex="(?:ab){6}", max_tokens=3, **options).finish == "length"
    stopped = client.generate("x", regex="(?:ab){6}", stop="bab", **options)
    assert (stopped.text, stopped.finish) == ("a", "stop")
    assert client.generate("x", choice=["left"], min_tokens=50, **options).text == "left"
    assert client.generate("x", grammar="start: <|im_start|> /y/", **options).text == "y"
    several = client.generate("x", choice=["a", "b", "c", "d"], n=8, **options)
    assert len({choice.text for choice in several.choices}) > 1


@pytest.mark.daemon
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=SCHEMAS)
def test_any_schema_over_the_wire(served: tuple[Served, str], wanted: dict[str, Any]) -> None:
    result = served[0].client().generate("x", json_schema=wanted, temperature=1.0, seed=1, max_tokens=300)
    if result.finish == "stop":
        Draft202012Validator(wanted).validate(json.loads(result.text))


@pytest.mark.daemon
@pytest.mark.smollm2
@pytest.mark.timeout(300)
def test_the_default_model_follows_schemas() -> None:
    path = smollm2_path()
    book: dict[str, Any] = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 40},
            "year": {"type": "integer", "minimum": 1500, "maximum": 2030},
            "kinds": {"type": "array", "items": {"enum": ["novel", "drama", "poem"]}, "minItems": 1, "maxItems": 2},
            "author": {"type": ["object", "null"], "properties": {"name": {"type": "string", "maxLength": 20}}},
        },
        "required": ["title", "year", "kinds", "author"],
        "additionalProperties": False,
    }
    with serving(path, {"engine": {"max_context": 512}, "plugins": {"draft": "ngram"}}) as daemon:
        client = daemon.client()
        ready(client, str(path))
        asks = [("Describe a famous book as JSON.", temperature, seed) for temperature, seed in ((0.0, 1), (1.0, 2))]
        for ask, temperature, seed in asks:
            result = client.chat(ask, json_schema=book, temperature=temperature, seed=seed, max_tokens=200)
            if result.finish == "stop":
                Draft202012Validator(book).validate(json.loads(result.text))
        sure = client.chat("Is water wet?", choice=["yes", "no"], temperature=0.0)
        assert sure.text in ("yes", "no")
        assert client.chat("When?", regex=r"\d{4}-\d\d-\d\d", temperature=1.0, seed=3).text.isascii()
