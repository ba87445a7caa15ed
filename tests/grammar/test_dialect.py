"""From requests to grammars: what is taken, quoted, and refused before anything is compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from inferd.grammar.dialect import to_llguidance
from inferd.grammar.limits import parser_limits
from inferd.grammar.source import grammar_of, without_grammar
from inferd.link import Grammar
from inferd_client.protocol import Caps, SamplingParams
from tests.grammar.judge import Oracle, choice, lark, regex, schema
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tiny_llama(tmp_path_factory.mktemp("dialect")), 290)


def takes(oracle: Oracle, grammar: Grammar, text: str) -> bool:
    matcher = LLMatcher(oracle.tokenizer, to_llguidance(grammar), log_level=0, limits=parser_limits())
    assert not matcher.is_error(), matcher.get_error()
    ids = oracle.vocabulary.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("a/b", "a/b", "a"),
        ("a\nb", "a\nb", "a b"),
        (r"a\/b", "a/b", "ab"),
        (r"\\/", "\\/", "/"),
        (r"[/\d]{2}", "/7", "/x"),
        (r"\d", "7", "٣"),
        (r"\D", "x", "7"),
        (r"[^\d/]", "x", "/"),
        ('"#//', '"#//', '"'),
        (r"\w+", "Köln", "-"),
        ("(?i:ab)", "aB", "bA"),
        ("ü💥|ß", "ü💥", "ü"),
    ],
)
def test_expressions_mean_what_they_say(oracle: Oracle, pattern: str, inside: str, outside: str) -> None:
    assert takes(oracle, regex(pattern), inside)
    assert not takes(oracle, regex(pattern), outside)


@given(entries=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5))
def test_each_choice_is_taken_word_for_word(oracle: Oracle, entries: list[str]) -> None:
    for entry in entries:
        assert takes(oracle, choice(*entries), entry)
        assert takes(oracle, choice(*entries), entry + "x") == (entry + "x" in entries)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"a":1,"b":[]}', True),
        ('{"a": 1, "b": []}', True),
        ('{\n  "a": 1,\n  "b": []\n}', True),
        ('{\n\t"a" : 1 ,"b":\n[\n]}', True),
        ('{"a":  1,"b":[]}', False),
        ('{\n\n"a":1,"b":[]}', False),
        (' {"a":1,"b":[]}', False),
        ('{"a":1,"b":[]}\n', False),
        ('{"b":[],"a":1}', False),
    ],
)
def test_blanks_in_json_are_those_of_printers(oracle: Oracle, text: str, allowed: bool) -> None:
    wanted = schema({"properties": {"a": {"const": 1}, "b": {"const": []}}, "required": ["a", "b"], "type": "object"})
    assert takes(oracle, wanted, text) == allowed


def test_text_that_spells_a_special_token_is_text(oracle: Oracle) -> None:
    """Only a grammar that names the token itself allows it."""
    specials = set(oracle.vocabulary.specials)
    assert not oracle.allowed(regex(r"<\|im_end\|>"), []) & specials
    assert oracle.allowed(lark("start: <|im_start|> /a/"), []) == {2}
    assert oracle.allowed(lark("start: <[2]> /a/"), []) == {2}


def test_ids_past_the_vocabulary_are_never_allowed(tmp_path: Path) -> None:
    oracle = Oracle(tiny_llama(tmp_path), 350)
    allowed = oracle.allowed(regex(r"(?s:.*)"), [])
    assert max(allowed) < 290
    assert {1, 3} <= allowed


@pytest.mark.parametrize(
    ("grammar", "why"),
    [(schema({"x-guidance": {"lenient": True}}), "x-guidance"), (lark(' {"grammars": []}'), "Lark")],
)
def test_ways_around_the_dialect_are_closed(grammar: Grammar, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        to_llguidance(grammar)


def test_a_request_asks_for_one_thing() -> None:
    asked = SamplingParams(json_schema={"b": 1, "a": 2}, max_tokens=5)
    grammar = grammar_of(asked)
    assert grammar is not None
    assert (grammar.kind, list(json.loads(grammar.text))) == ("json_schema", ["b", "a"])
    assert without_grammar(asked) == SamplingParams(max_tokens=5)
    assert grammar_of(SamplingParams(choice=("ü",))) == Grammar(kind="choice", text='["ü"]')
    assert grammar_of(SamplingParams()) is None


DEEP: dict[str, Any] = {}
for _ in range(Caps.GRAMMAR_DEPTH):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"regex": "a", "choice": ("b",)}, "choice"),
        ({"json_schema": {}, "grammar": "start: /a/", "regex": "x"}, "regex"),
        ({"regex": ""}, "regex"),
        ({"grammar": ""}, "grammar"),
        ({"choice": ()}, "choice"),
        ({"choice": ("a", "")}, "choice"),
        ({"choice": ("a",) * (Caps.CHOICES + 1)}, "choice"),
        ({"choice": ("a" * Caps.GRAMMAR_BYTES, "b")}, "choice"),
        ({"regex": "ü" * (Caps.GRAMMAR_BYTES // 2 + 1)}, "regex"),
        ({"json_schema": {"enum": ["a" * Caps.GRAMMAR_BYTES]}}, "json_schema"),
        ({"json_schema": DEEP}, "json_schema"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_out_of_bounds_is_named(fields: dict[str, Any], field: str) -> None:
    problem = SamplingParams(**fields).problem()
    assert problem is not None
    assert problem[0] == field
    assert not re.search(r"\d{7}", problem[1])


def test_what_is_just_within_bounds_is_taken() -> None:
    assert SamplingParams(regex="a" * Caps.GRAMMAR_BYTES).problem() is None
    assert SamplingParams(choice=("a",) * Caps.CHOICES).problem() is None
    assert SamplingParams(json_schema=DEEP["items"]).problem() is None
