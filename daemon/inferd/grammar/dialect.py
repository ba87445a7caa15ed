"""Grammars in the form in which llguidance reads them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import msgspec
from llguidance import regex_to_lark

if TYPE_CHECKING:
    from inferd.link import Grammar

WHITESPACE = r"\x20|\n[\x20\t]{0,40}"
"""Between the parts of JSON: as printers write it. Without a bound a model may go on with blanks for ever."""
_CONTROLS = re.compile("[\x7f-\x9f]")
_ESCAPED_OUT = re.compile(r'\[\^[^\]]*(?:"|\\\\)')
"""A class that excludes what JSON escapes: the library lets the escaped form through."""
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
            words = " | ".join(map(_lark_string, entries))
            return f"start: CHOICE\nCHOICE: {words}"  # a terminal: the parser would follow each word of a rule
        case "grammar":
            if grammar.text.lstrip().startswith("{"):
                raise ValueError("a grammar is written in Lark; for JSON there is json_schema")
            return grammar.text


def _lark_string(text: str) -> str:
    """Quote as JSON does, and the control characters that JSON takes as they are and Lark does not."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def _from_schema(text: str) -> str:
    schema = msgspec.json.decode(text, type=dict)
    if "x-guidance" in schema:
        raise ValueError("the keyword x-guidance is not allowed in a schema")
    _check_patterns(schema)
    return json.dumps({"grammars": [{"json_schema": schema | {"x-guidance": JSON_OPTIONS}}]})


def _check_patterns(node: object) -> None:
    """Raise ValueError for a pattern that the library would not hold an output to."""
    pending = [node]
    while pending:
        match pending.pop():
            case dict() as fields:
                pattern = fields.get("pattern")
                if isinstance(pattern, str) and _ESCAPED_OUT.search(pattern):
                    raise ValueError(
                        'pattern: a negated class cannot name `"` or `\\`; list the characters that are allowed'
                    )
                pending += fields.values()
            case list() as entries:
                pending += entries
