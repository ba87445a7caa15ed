"""Tool calls through the whole way: request, template, answer, deltas, and the loop of three turns."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from inferd_client.testing import FakeDaemon
from tests.gateway.running import Running, gateway

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS: Any = [WEATHER, CLOCK]
RESULTS = {"weather": "12 degrees", "clock": "half past nine"}


def ask(content: str = "weather in Köln?") -> list[Any]:
    return [{"role": "user", "content": content}]


def test_calls_of_an_answer(client: OpenAI):
    choice = client.chat.completions.create(model="fake", messages=ask(), tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    calls: Any = choice.message.tool_calls
    assert [(call.type, call.function.name) for call in calls] == [("function", "weather"), ("function", "clock")]
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Köln"}, {}]
    assert len({call.id for call in calls}) == 2


def test_calls_are_streamed_by_name_then_arguments(client: OpenAI):
    deltas, reasons = [], []
    for chunk in client.chat.completions.create(model="fake", messages=ask(), tools=TOOLS, stream=True):
        deltas.append(chunk.choices[0].delta)
        reasons.append(chunk.choices[0].finish_reason)
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert [(p.index, p.function and p.function.name) for p in parts] == [
        (0, "weather"),
        (0, None),
        (1, "clock"),
        (1, None),
    ]
    assert [bool(part.id) for part in parts] == [True, False, True, False]
    assert [part.function and part.function.arguments for part in parts] == ["", '{"city": "Köln"}', "", "{}"]
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    assert reasons[-1] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_three_turns(client: OpenAI, stream):
    """The model asks for the weather and the time, then for the time again, then answers."""
    messages = ask()
    turns = 0
    while True:
        turns += 1
        message = _turn(client, messages, stream)
        messages.append(message)
        if not message.get("tool_calls"):
            break
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": RESULTS[call["function"]["name"]]}
            for call in message["tool_calls"][:1]
        ]
    assert turns == 3
    assert messages[-1]["content"] == "It is 12 degrees at half past nine."
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def _turn(client: OpenAI, messages: list[Any], stream: bool) -> dict[str, Any]:
    if stream:
        with client.chat.completions.stream(model="fake", messages=messages, tools=TOOLS) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(model="fake", messages=messages, tools=TOOLS).choices[0].message
    return message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})


def test_tools_and_calls_reach_the_template(running: Running):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
    chat = [
        {"role": "user", "content": "plain"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "result"},
    ]
    said = running.chat(messages=chat, tools=TOOLS, tool_choice="none", model="other").json
    assert "tools\n" not in said["choices"][0]["message"]["content"]
    reply = running.chat(messages=chat, tools=TOOLS, model="other").json["choices"][0]["message"]
    assert '"description": "Of a city"' in reply["content"]
    assert [c["function"] for c in reply["tool_calls"]] == [{"name": "weather", "arguments": '{"city": "Ulm"}'}]


def test_without_tools_nothing_is_parsed(client: OpenAI):
    message = client.chat.completions.create(model="fake", messages=ask()).choices[0].message
    assert message.tool_calls is None
    assert message.content is not None
    assert "<tool_call>" in message.content


def test_a_malformed_call_comes_back_as_text(client: OpenAI):
    choice = client.chat.completions.create(model="fake", messages=ask("broken call"), tools=TOOLS).choices[0]
    assert choice.message.content == 'Look: <tool_call>{"name": "weather", "arguments": </tool_call> done'
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "absent"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
        ({"extra_body": {"structured_outputs": {"regex": "a"}}}, "structured_outputs"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
def test_what_cannot_be_promised_is_refused(client: OpenAI, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "fake", "messages": ask(), "tools": TOOLS} | options)
    assert caught.value.param == param
    assert param.partition("[")[0] in caught.value.message


def test_the_operator_names_the_format():
    reply = '[TOOL_CALLS][{"name": "clock", "arguments": {"zone": "UTC"}}]'
    with FakeDaemon({"reply": reply}) as daemon, gateway(daemon.runtime, tool_format="mistral") as running:
        message = running.chat(tools=TOOLS, model="fake").json["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"][0]["id"]) == 9
    assert message["tool_calls"][0]["function"] == {"name": "clock", "arguments": '{"zone": "UTC"}'}
