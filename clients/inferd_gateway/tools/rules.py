"""Grammars of tool calls: Lark rules in the form that the model's template teaches, with the schemas of the tools.

`calls` is one call or several and nothing else; `answer` is text or calls or both, as the format allows. `marker` is
the token of the format's marker where that is a special one, which has no text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MAX_CALLS = 16
"""In one answer: a small model may find no end."""
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As the objects in training data are printed."""
TEXT = r"TEXT: /(.|\n)*/"
_ANYTHING = {"type": "object"}


def hermes(tools: Sequence[dict[str, Any]], marker: int | None, *, parallel: bool) -> list[str]:
    """`<tool_call>`, a line break, the object, a line break, `</tool_call>`."""
    several = _repeated('"\\n" call', parallel)
    answer = "(opening body closing)* TEXT" if parallel else "opening body closing | TEXT"
    return [
        f"calls: call {several}",
        'call: "<tool_call>\\n" body closing',
        f"answer: {answer}",
        'opening[lazy]: TEXT "<tool_call>\\n"',
        'closing: "\\n</tool_call>"',
        TEXT,
        *_bodies(tools, "arguments"),
    ]


def llama3(tools: Sequence[dict[str, Any]], marker: int | None, *, parallel: bool) -> list[str]:
    """The object alone; several with `; ` between. Text is what does not begin like an object."""
    return [
        f"calls: body {_repeated(_quoted('; ') + ' body', parallel)}",
        "answer: calls | PLAIN",
        r"PLAIN: /([^{\s](.|\n)*)?/",
        *_bodies(tools, "parameters"),
    ]


def mistral(tools: Sequence[dict[str, Any]], marker: int | None, *, parallel: bool) -> list[str]:
    """The marker, then the objects in an array; text may come before it."""
    several = _repeated(_quoted(", ") + " body", parallel)
    literal = _quoted("[TOOL_CALLS]")
    return [
        f"calls: {literal if marker is None else f'<[{marker}]>'} array",
        "answer: opening array | TEXT",
        f"opening[lazy]: TEXT {literal}" if marker is None else f"opening: TEXT <[{marker}]>",
        f'array: "[" body {several} "]"',
        TEXT,
        *_bodies(tools, "arguments"),
    ]


def _bodies(tools: Sequence[dict[str, Any]], key: str) -> list[str]:
    """Return `body`: the object of a call of any of the tools, each schema with definitions of its own."""
    rules = ["body: " + " | ".join(f"tool_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        function = tool["function"]
        head = f'{{"name": {json.dumps(function["name"])}, "{key}": '
        schema = {**(function.get("parameters") or _ANYTHING), "x-guidance": COMPACT}
        rules += [
            f"tool_{i}: {_quoted(head)} arguments_{i} {_quoted('}')}",
            f"arguments_{i}: %json {json.dumps(schema)}",
        ]
    return rules


def _repeated(what: str, parallel: bool) -> str:
    return f"({what}){{0,{MAX_CALLS - 1}}}" if parallel else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
