"""Grammars in the form in which llguidance reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
from llguidance import regex_to_lark

if TYPE_CHECKING:
    from inferd.link import Grammar

WHITESPACE = r"\x20|\n[\x20\t]{0,40}"
"""Between the parts of JSON: as printers write it. Without a bound a model may go on with blanks for ever."""
JSON_OPTIONS = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}


def to_llguidance(grammar: Grammar) -> str:
    """Return the grammar's text for `LLMatcher`. Raises ValueError for what is not allowed in one."""
    match grammar.kind:
        case "json_schema":
            return _from_schema(grammar.text)
        case "regex":
            return f"start: /{regex_to_lark(grammar.text, use_ascii='d')}/"
        case "choice":
            entries = msgspec.json.decode(grammar.text, type=list[str])
            words = " | ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
            return f"start: CHOICE\nCHOICE: {words}"  # a terminal: the parser would follow each word of a rule
        case "grammar":
            return grammar.text


def _from_schema(text: str) -> str:
    schema = msgspec.json.decode(text, type=dict)
    if "x-guidance" in schema:
        raise ValueError("the keyword x-guidance is not allowed in a schema")
    return json.dumps({"grammars": [{"json_schema": schema | {"x-guidance": JSON_OPTIONS}}]})
