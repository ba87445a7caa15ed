"""Each parser, whole and cut at every place: the same calls and the same text."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd_gateway.tools import FORMATS, Call, Text
from inferd_gateway.tools.formats import format_of

NAMES = ("get", "put-it")


class Case(NamedTuple):
    format: str
    said: str
    text: str
    calls: list[tuple[str, dict]] = []


GET = '{"name": "get", "arguments": {"q": "a</tool_call>\\" ]}"}}'
ARGS = {"q": 'a</tool_call>" ]}'}
HUGE = '{"name": "get", "arguments": ' + "[" * 5000 + "]" * 5000 + "}"
CASES = [
    Case("hermes", "no call < here <tool", "no call < here <tool"),
    Case("hermes", f"<tool_call>\n{GET}\n</tool_call>", "", [("get", ARGS)]),
    Case("hermes", f"a<tool_call>{GET}</tool_call>b<tool_call> {GET}</tool_call>", "ab", [("get", ARGS)] * 2),
    Case("hermes", f"<tool_call>{GET}", "", [("get", ARGS)]),
    Case("hermes", f"<tool_call>{GET}</tool_c", f"<tool_call>{GET}</tool_c"),
    Case("hermes", f"<tool_call>{GET[:-1]}", f"<tool_call>{GET[:-1]}"),
    Case("hermes", "<tool_call>what</tool_call>!", "<tool_call>what</tool_call>!"),
    Case("hermes", f"<tool_call>{GET} and</tool_call>", f"<tool_call>{GET} and</tool_call>"),
    Case(
        "hermes",
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "get", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "get", "arguments": {"x": NaN}}</tool_call>',
    ),
    Case("hermes", '<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("get", {"a": 1})]),
    Case("hermes", '<tool_call>{"name": "put-it"}</tool_call>', "", [("put-it", {})]),
    Case("hermes", f"<tool_call>{HUGE}</tool_call>", f"<tool_call>{HUGE}</tool_call>"),
    Case("llama3", "It is {fine}.", "It is {fine}."),
    Case("llama3", ' {"name": "get", "parameters": {"q": "}"}}', "", [("get", {"q": "}"})]),
    Case(
        "llama3",
        '<|python_tag|>{"name": "get", "parameters": {}}; {"name": "put-it", "parameters": {"a": [1]}}',
        "",
        [("get", {}), ("put-it", {"a": [1]})],
    ),
    Case("llama3", '{"name": "get", "parameters": {}} or not', " or not", [("get", {})]),
    Case("llama3", '{"some": "json"} after', '{"some": "json"} after'),
    Case("llama3", '{"name": "get", "param', '{"name": "get", "param'),
    Case("llama3", "<|python", "<|python"),
    Case("mistral", "see [TOOL_CALL] there [", "see [TOOL_CALL] there ["),
    Case(
        "mistral",
        '[TOOL_CALLS] [{"name": "get", "arguments": {"a": "]"}}, {"name": "put-it", "arguments": {}}]',
        "",
        [("get", {"a": "]"}), ("put-it", {})],
    ),
    Case(
        "mistral",
        'So: [TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]put-it{"b": {}}',
        "So: ",
        [("get", {"a": 1}), ("put-it", {"b": {}})],
    ),
    Case("mistral", '[TOOL_CALLS][{"name": "rm", "arguments": {}}]', '[TOOL_CALLS][{"name": "rm", "arguments": {}}]'),
    Case("mistral", '[TOOL_CALLS][{"name": "get", ', '[TOOL_CALLS][{"name": "get", '),
    Case("mistral", "[TOOL_CALLS]" + "x y " * 100, "[TOOL_CALLS]" + "x y " * 100),
    Case("mistral", "[TOOL_CALLS][] end", "[TOOL_CALLS][] end"),
]


def read(case: Case, pieces: list[str]) -> tuple[str, list[tuple[str, dict]]]:
    parser = FORMATS[case.format].parser(NAMES)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert all(event.text for event in events if isinstance(event, Text))
    text = "".join(event.text for event in events if isinstance(event, Text))
    return text, [(event.name, json.loads(event.arguments)) for event in events if isinstance(event, Call)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}-{case.said[:40]}")
def test_whole_by_character_and_cut_in_two(case):
    expected = (case.text, case.calls)
    assert read(case, [case.said]) == expected
    assert read(case, list(case.said)) == expected
    for cut in range(0, len(case.said), max(1, len(case.said) // 50)):
        assert read(case, [case.said[:cut], case.said[cut:]]) == expected


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    GET,
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    "get",
    " ",
    ";",
    "\n",
    "ab",
]


@given(st.sampled_from(sorted(FORMATS)), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.integers(1, 9))
def test_no_text_is_lost_and_cuts_do_not_matter(name, fragments, size):
    said = "".join(fragments)
    case = Case(name, said, "")
    text, calls = read(case, [said])
    assert read(case, [said[i : i + size] for i in range(0, len(said), size)]) == (text, calls)
    if not calls:
        assert text == said or not said.strip(" ;\n")


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ('x<tool_call>\n{"name": "probe"}', "hermes"),
        ("[AVAILABLE_TOOLS][]", "mistral"),
        ('<|start_header_id|>assistant\n{"name": "probe", "parameters": {}}', "llama3"),
        ("<tool_call>\n<function=probe>", None),
        ("user: probe", None),
    ],
)
def test_the_format_is_seen_in_a_prompt(prompt, name):
    found = format_of(prompt)
    assert (found and found.name) == name
