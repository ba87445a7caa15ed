"""The grammars of tool calls: what they allow, the parsers read; and they allow what the templates teach."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from inferd.grammar.limits import parser_limits
from inferd_gateway.tools import FORMATS, Call, ToolFormat
from tests.grammar.judge import Oracle
from tests.tiny import tiny_llama

MARKER = 2
"""A special token of the tiny vocabulary, in the place of Mistral's."""
CITY = {"$ref": "#/$defs/city"}
TOOLS: list[dict[str, Any]] = [
    {
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": CITY, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"city": {"enum": ["Köln", 'a "b"', "</tool_call>"]}},
            },
        }
    },
    {"function": {"name": "clock-2.x", "parameters": {"type": "object", "additionalProperties": False}}},
]
WEATHER = '{"name": "weather", "%s": {"city": "Köln", "days": 2}}'
CLOCK = '{"name": "clock-2.x", "%s": {}}'
Tokens = list[str | int]
"""Text and special tokens."""
TAUGHT: dict[str, tuple[Tokens, Tokens]] = {
    "hermes": (
        [f"<tool_call>\n{WEATHER % 'arguments'}\n</tool_call>"],
        [f"\n<tool_call>\n{CLOCK % 'arguments'}\n</tool_call>"],
    ),
    "llama3": ([WEATHER % "parameters"], [f"; {CLOCK % 'parameters'}"]),
}
"""One call, and what a second one adds."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tiny_llama(tmp_path_factory.mktemp("rules")), 290)


def matcher(oracle: Oracle, made: ToolFormat, goal: str, *, parallel: bool, marker: int | None = None) -> LLMatcher:
    rules = made.rules(TOOLS, marker, parallel=parallel)
    grammar = "\n".join(dict.fromkeys([f"start: {goal}", *rules]))
    found = LLMatcher(oracle.tokenizer, grammar, log_level=0, limits=parser_limits())
    assert not found.is_error(), found.get_error()
    return found


def takes(found: LLMatcher, oracle: Oracle, said: Tokens) -> bool:
    """Whether a grammar allows an answer and lets it end there."""
    ids = [token for part in said for token in ([part] if isinstance(part, int) else oracle.vocabulary.encode(part))]
    return found.try_consume_tokens(ids) == len(ids) and found.is_accepting()


def taught(made: ToolFormat, marker: int | None) -> tuple[Tokens, Tokens]:
    if made.name != "mistral":
        return TAUGHT[made.name]
    sign: Tokens = ["[TOOL_CALLS]"] if marker is None else [marker]
    one, two = WEATHER % "arguments", CLOCK % "arguments"
    return [*sign, f"[{one}]"], [*sign, f"[{one}, {two}]"]


@pytest.mark.parametrize("marker", [None, MARKER])
@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS)
def test_what_templates_teach_is_allowed(oracle: Oracle, made: ToolFormat, marker: int | None) -> None:
    one, more = taught(made, marker)
    two = more if made.name == "mistral" else [*one, *more]
    for goal in ("calls", "answer"):
        for parallel in (True, False):
            fresh = matcher(oracle, made, goal, parallel=parallel, marker=marker)
            assert takes(fresh.deep_copy(), oracle, one)
            assert takes(fresh.deep_copy(), oracle, two) == parallel
            assert takes(fresh.deep_copy(), oracle, ["Hello <b>."]) == (goal == "answer")
            assert takes(fresh.deep_copy(), oracle, []) == (goal == "answer")
            wrong = [part.replace("Köln", "Rom") if isinstance(part, str) else part for part in one]
            assert not takes(fresh.deep_copy(), oracle, wrong)


@pytest.mark.parametrize("marker", [None, MARKER])
@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS)
def test_whatever_is_allowed_is_read_back_as_calls(oracle: Oracle, made: ToolFormat, marker: int | None) -> None:
    """Random walks through the grammar, then the parser."""
    rng = random.Random(5)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for _ in range(12):
        found = matcher(oracle, made, "calls", parallel=True, marker=marker)
        ids: list[int] = []
        while not found.is_stopped() and len(ids) < 400:
            bits = np.frombuffer(found.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little", count=290))
            ids.append(int(rng.choice(allowed)))
            assert found.consume_token(ids[-1])
        special = {1: "", 3: "", MARKER: "[TOOL_CALLS]"}
        pieces = oracle.vocabulary.pieces
        text = b"".join(special[i].encode() if i in special else pieces[i] for i in ids).decode()
        parser = made.parser(schemas)
        events = [*parser.push(text), *parser.finish()]
        calls = [event for event in events if isinstance(event, Call)]
        assert calls
        assert not "".join(event.text for event in events if not isinstance(event, Call)).strip()
        for call in calls:
            Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))
