"""Options of `run` and `chat` that say how tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--max-tokens", int, "Most tokens of the answer."),
    ("--temperature", float, "0 = greedy."),
    ("--top-k", int, "Sample among the k likeliest tokens."),
    ("--top-p", float, "Sample within this probability mass."),
    ("--min-p", float, "Drop tokens below this share of the likeliest."),
    ("--repetition-penalty", float, "Above 1 discourages what was said before."),
    ("--seed", int, "Repeat an answer."),
)


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add them to a command, which receives one keyword each (None = not given)."""
    function = click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")(function)
    for name, type_, text in reversed(OPTIONS):
        function = click.option(name, type=type_, help=text)(function)
    return function


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as the client library takes them."""
    return {name: value for name, value in options.items() if value not in (None, ())}
