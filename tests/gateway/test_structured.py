"""Structured output through the gateway: the real daemon, a model of random weights, the real `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI

from tests.e2e.harness import serving
from tests.gateway.running import Running, gateway
from tests.gateway.test_tools import ask
from tests.tiny import tiny_llama

TEMPLATE = (
    "{% if tools %}Write <tool_call>.{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}"
)
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "temperature": {"type": "integer", "minimum": -40, "maximum": 50},
        "sky": {"enum": ["blue", "grey"]},
    },
    "required": ["temperature", "sky"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Köln", "Rom"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": n, "parameters": s, "strict": True}} for n, s in SCHEMAS.items()
]
FORM: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": ANSWER, "strict": True}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("structured")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    model = tiny_llama(folder / "tiny", context=1500)
    config = {"models": {"tiny": {"path": str(model), "chat_template": str(template)}}, "engine": {"threads": 1}}
    with serving("tiny", config) as served, gateway(served.runtime) as running:
        served.client().load("tiny")
        yield running


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[OpenAI]:
    with running.openai(timeout=60) as client:
        yield client


def create(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "tiny", "messages": ask(), "seed": 3, "max_tokens": 300} | options
    )


def check_calls(message: Any, names: set[str]) -> list[Any]:
    assert not message.content
    assert message.tool_calls
    for call in message.tool_calls:
        assert call.function.name in names
        Draft202012Validator(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))
    return message.tool_calls


@pytest.mark.daemon
def test_response_formats(client: OpenAI) -> None:
    answer = create(client, response_format=FORM, n=3)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        Draft202012Validator(ANSWER).validate(json.loads(choice.message.content))
    streamed = create(client, response_format=FORM, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == answer.choices[0].message.content
    some = create(client, response_format={"type": "json_object"}, logit_bias={"93": 3, "34": -5}, max_tokens=200)
    if some.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(some.choices[0].message.content), dict)


@pytest.mark.daemon
def test_reasoning_stays_free_and_comes_first(client: OpenAI) -> None:
    """The thought ends by a bias towards its tag's first character: a random model has no other reason to."""
    body = {"enable_thinking": True}
    answer = create(client, response_format=FORM, extra_body=body, logit_bias={"28": 7}, max_tokens=900, n=2)
    done = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    for choice in done:
        Draft202012Validator(ANSWER).validate(json.loads(choice.message.content))
        assert choice.message.reasoning_content is not None
    assert all(choice.message.content == "" for choice in answer.choices if choice not in done)


@pytest.mark.daemon
def test_required_and_named_tools_are_called(client: OpenAI) -> None:
    for seed in range(4):
        choice = create(client, tools=TOOLS, tool_choice="required", seed=seed).choices[0]
        if choice.finish_reason != "length":
            assert choice.finish_reason == "tool_calls"
            check_calls(choice.message, set(SCHEMAS))
        one = create(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0]
        assert len(check_calls(one.message, set(SCHEMAS))) == 1
        for name in SCHEMAS:
            named: Any = {"type": "function", "function": {"name": name}}
            choice = create(client, tools=TOOLS, tool_choice=named, seed=seed).choices[0]
            assert len(check_calls(choice.message, {name})) == 1


@pytest.mark.daemon
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_three_turns_with_required_tools(client: OpenAI, stream: bool) -> None:
    """Two turns must call, the third must answer in a form; every message goes back to the model."""
    messages: list[Any] = ask()
    for turn in range(2):
        options: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        message = turn_of(client, messages, stream, seed=turn, **options)
        (call,) = check_calls(message, set(SCHEMAS))
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "12"})
    message = turn_of(client, messages, stream, tools=TOOLS, tool_choice="none", response_format=FORM)
    assert message.tool_calls is None
    Draft202012Validator(ANSWER).validate(json.loads(message.content))


def turn_of(client: OpenAI, messages: list[Any], stream: bool, **options: Any) -> Any:
    asked = {"model": "tiny", "messages": messages, "seed": 3, "max_tokens": 300} | options
    if not stream:
        return client.chat.completions.create(**asked).choices[0].message
    with client.chat.completions.stream(**asked) as events:
        return events.get_final_completion().choices[0].message


@pytest.mark.daemon
def test_free_choice_binds_strict_tools_only(client: OpenAI) -> None:
    """With a bias towards the opening tag a random model writes calls by itself: those of strict tools are sound."""
    loose: Any = [{"type": "function", "function": {"name": n}} for n in SCHEMAS]
    answer = create(client, tools=TOOLS, tool_choice="auto", logit_bias={"28": 9}, n=4, max_tokens=200)
    for choice in answer.choices:
        for call in choice.message.tool_calls or ():
            Draft202012Validator(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))
    assert create(client, tools=loose, max_tokens=5).choices[0].finish_reason == "length"
    both = create(client, tools=TOOLS, response_format=FORM, n=4)
    for choice in both.choices:
        if choice.finish_reason == "stop":
            Draft202012Validator(ANSWER).validate(json.loads(choice.message.content))
        elif choice.finish_reason == "tool_calls":
            check_calls(choice.message, set(SCHEMAS))


@pytest.mark.daemon
def test_completions_take_grammars_too(client: OpenAI) -> None:
    def complete(**structured: Any) -> str:
        answer = client.completions.create(
            model="tiny", prompt="x", max_tokens=90, seed=1, extra_body={"structured_outputs": structured}
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert complete(regex="a{5}") == "aaaaa"
    assert complete(choice=["left", "right"]) in ("left", "right")
    assert complete(grammar='start: "(" /[xyz]/ ")"') in ("(x)", "(y)", "(z)")
    Draft202012Validator(ANSWER).validate(json.loads(complete(json=ANSWER)))
    Draft202012Validator(ANSWER).validate(json.loads(complete(json=json.dumps(ANSWER))))


@pytest.mark.daemon
@pytest.mark.parametrize(
    ("options", "param", "said"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "not supported of JSON Schema",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "(?=a)"}}}, "regex", "look-around"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "choice", "at most one"),
        ({"extra_body": {"structured_outputs": {"json": "{"}}}, "structured_outputs.json", "JSON"),
        ({"extra_body": {"structured_outputs": {"xml": "x"}}}, None, "xml"),
        (
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"uniqueItems": True}}}],
            },
            "grammar",
            "uniqueItems",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(
    client: OpenAI, options: dict[str, Any], param: str | None, said: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, **options)
    assert said in caught.value.message
    assert caught.value.param == param or param is None
