"""What is tried: sound grammars pass, others are refused with a reason that helps, whatever the library does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.grammar.trial import try_grammar
from inferd.link import Grammar
from tests.grammar.judge import GRAMMAR_KEYWORDS, SCHEMAS, choice, lark, regex, schema


@settings(max_examples=40, deadline=None)
@given(wanted=SCHEMAS)
def test_sound_schemas_pass(wanted: dict[str, Any]) -> None:
    assert try_grammar(schema(wanted)) == ""


@pytest.mark.parametrize(("keyword", "value"), GRAMMAR_KEYWORDS.items())
def test_a_keyword_that_cannot_be_enforced_is_refused_by_name(keyword: str, value: Any) -> None:
    why = try_grammar(schema({"type": ["object", "array", "string"], keyword: value}))
    assert keyword in why
    assert "not supported" in why


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (regex("(?=a)"), "look-around"),
        (regex(r"(a)\1"), "backreferences"),
        (regex("a{2"), "repetition"),
        (regex("[b-a]"), "range"),
        (regex("(" * 3000 + "a" + ")" * 3000), "nested"),
        (regex(r"[^\s\S]"), "no output"),
        (lark("start: nowhere"), "nowhere"),
        (lark("begin: /a/"), "start"),
        (lark("no grammar at all"), ":"),
        (lark("start: " + "(" * 50_000 + '"a"' + ")" * 50_000), "deeply nested"),
        (schema({"type": "strnig"}), "strnig"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "greater than"),
        (schema({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "anyOf"),
        (schema({"$ref": "https://example.com/schema"}), "not"),
        (schema({"$ref": "#/$defs/none"}), "none"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no output"),
        (schema({"type": "string", "format": "made-up"}), "made-up"),
        (schema({"type": "string", "pattern": "(?!a)b"}), "look-around"),
        (schema({"items": {"type": "string", "pattern": '^[^"x]{2}$'}}), "negated class"),
        (schema({"anyOf": [{"type": "string", "pattern": r"^[^\\]+$"}]}), "negated class"),
        (schema({"required": ["z"], "type": "object", "additionalProperties": False}), "z"),
    ],
)
def test_reasons_are_short_and_to_the_point(grammar: Grammar, said: str) -> None:
    why = try_grammar(grammar)
    assert said in why
    assert len(why) < 450
    assert "\n" not in why


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(["json_schema", "regex", "grammar", "choice"]), text=st.text(max_size=60))
def test_nonsense_is_answered(kind: Any, text: str) -> None:
    assert isinstance(try_grammar(Grammar(kind=kind, text=text)), str)


def test_large_but_sound_ones_pass() -> None:
    assert try_grammar(choice(*(f"entry {i} of many" for i in range(4000)))) == ""
    assert try_grammar(schema({"enum": [f"value {i}" for i in range(10_000)]})) == ""
    assert (
        try_grammar(schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}})) == ""
    )
    assert try_grammar(regex("(a{1,1000}b{1,1000}){1,1000}")) == ""
