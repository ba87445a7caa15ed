"""What structured output is judged by: jsonschema, Python's own expressions, and fresh matchers of the library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from inferd.grammar.dialect import to_llguidance
from inferd.grammar.limits import parser_limits
from inferd.grammar.tokenizer import make_tokenizer
from inferd.link import Grammar
from inferd.load.vocab import open_vocabulary

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", None, 3]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema(value: Mapping[str, Any]) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(value))


def regex(pattern: str) -> Grammar:
    return Grammar(kind="regex", text=pattern)


def choice(*entries: str) -> Grammar:
    return Grammar(kind="choice", text=json.dumps(entries))


def lark(text: str) -> Grammar:
    return Grammar(kind="grammar", text=text)


def check(grammar: Grammar, text: str) -> None:
    """A whole output is what its grammar asks for."""
    match grammar.kind:
        case "json_schema":
            Draft202012Validator(json.loads(grammar.text)).validate(json.loads(text))
        case "regex":
            assert re.fullmatch(grammar.text, text), text
        case "choice":
            assert text in json.loads(grammar.text)
        case "grammar":
            raise AssertionError("there is no other judge of a Lark grammar")


class Oracle:
    """Follows outputs token by token with matchers that are made for it alone."""

    def __init__(self, path: Path, size: int) -> None:
        self.vocabulary = open_vocabulary(path)
        self.tokenizer: LLTokenizer = make_tokenizer(self.vocabulary, size)
        self._size = size

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, as UTF-8 that must be sound."""
        return b"".join(self.vocabulary.pieces[i] for i in ids).decode()

    def allowed(self, grammar: Grammar, output: Sequence[int]) -> set[int]:
        """Return the tokens that may follow an output."""
        matcher = LLMatcher(self.tokenizer, to_llguidance(grammar), log_level=0, limits=parser_limits())
        assert all(matcher.consume_token(token) for token in output), (grammar, output, matcher.get_error())
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return set(np.flatnonzero(np.unpackbits(bits, bitorder="little", count=self._size)).tolist())


# --- schemas with small values, so that a model that talks nonsense comes to their end -----------

_WORDS = st.text('abcdefgh_é💥"\\/\n', min_size=1, max_size=4)
_NUMBERS = st.integers(-50, 50)


def _bounded(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.tuples(_NUMBERS, _NUMBERS).map(sorted)
    return pairs.map(lambda pair: {"type": kind, "minimum": pair[0], "maximum": pair[1] + 0.5 * (kind == "number")})


_LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    _bounded("integer"),
    st.lists(st.one_of(_WORDS, _NUMBERS, st.none(), st.booleans()), min_size=1, max_size=4).map(lambda e: {"enum": e}),
    st.one_of(_WORDS, _NUMBERS, st.just([1, {"a": None}])).map(lambda value: {"const": value}),
    st.integers(0, 3).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 2}),
    st.sampled_from(["^[ab]{1,3}$", "^x\\d\\d$", "^(ja|nein)$", "^[^x]{2}$"]).map(
        lambda p: {"type": "string", "pattern": p}
    ),
    st.sampled_from(["date", "time", "ipv4", "uuid"]).map(lambda f: {"type": "string", "format": f}),
    st.integers(2, 5).map(lambda n: {"type": "integer", "multipleOf": n, "minimum": 0, "maximum": 60}),
    st.sampled_from([["string", "null"], ["integer", "boolean"]]).map(
        lambda t: {"type": t, "maxLength": 2, "minimum": 0, "maximum": 9}
    ),
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(_WORDS, inner, min_size=1, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties))).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )
    arrays = st.tuples(inner, st.integers(0, 2)).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1], "maxItems": pair[1] + 1}
    )
    tuples = st.lists(inner, min_size=1, max_size=2).map(
        lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    )
    either = st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options})
    return st.one_of(objects, arrays, tuples, either)


SCHEMAS = st.recursive(_LEAVES, _nested, max_leaves=5)

GRAMMAR_KEYWORDS: dict[str, Any] = {
    "not": {"type": "string"},
    "if": {"type": "string"},
    "uniqueItems": True,
    "contains": {"type": "integer"},
    "propertyNames": {"pattern": "^a"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "$dynamicRef": "#a",
}
"""Keywords of JSON Schema that constrain, and that no grammar here enforces."""
