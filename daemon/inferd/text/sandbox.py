"""The jinja environment of chat templates: what Hugging Face templates expect, and no more.

A template is data from the internet. It runs in jinja's immutable sandbox (no access to underscore
attributes, no changes to what it is given), with bounded ranges, powers and repetitions.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RANGE = 100_000
MAX_REPEAT = 1_000_000
MAX_POWER_BITS = 4096


class Refusal(TemplateError):
    """The template called raise_exception: the messages do not suit it."""


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks answers for training; here it is just its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with the names and filters that chat templates use."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        self.filters["tojson"] = to_json
        self.globals |= {"raise_exception": refuse, "strftime_now": strftime_now, "range": bounded_range}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        elif isinstance(left, (str, list, tuple)) or isinstance(right, (str, list, tuple)):
            _check_repeat(left, right)
        return super().call_binop(context, operator, left, right)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face templates get it: nothing escaped for HTML, keys in their own order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def refuse(message: str) -> NoReturn:
    raise Refusal(message)


def bounded_range(*arguments: int) -> range:
    numbers = range(*arguments)
    if len(numbers) > MAX_RANGE:
        raise OverflowError(f"range of {len(numbers)} exceeds the limit of {MAX_RANGE}")
    return numbers


def _check_repeat(left: Any, right: Any) -> None:
    sequence, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(times, int) and len(sequence) * times > MAX_REPEAT:
        raise OverflowError(f"repetition of {len(sequence)} x {times} exceeds the limit of {MAX_REPEAT}")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > MAX_POWER_BITS:
        raise OverflowError(f"power exceeds the limit of {MAX_POWER_BITS} bits")
