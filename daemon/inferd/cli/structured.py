"""Options of `run` that say what the answer must look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inferd.cli.errors import CliError
from inferd.cli.exits import Exit

MAX_FILE = 1 << 20


def structure_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add them to a command, which receives one keyword each (None = not given)."""
    for option in reversed(
        (
            click.option("--json-schema", metavar="FILE", help="The answer is JSON that this schema allows."),
            click.option("--regex", metavar="PATTERN", help="The whole answer matches this regular expression."),
            click.option("--grammar", metavar="FILE", help="The answer follows this Lark grammar."),
            click.option("--choice", multiple=True, metavar="TEXT", help="The answer is one of these; repeatable."),
        )
    ):
        function = option(function)
    return function


def read_structure(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as the client library takes them, files read. Raises CliError, UsageError."""
    import msgspec

    found = dict(options)
    if found.get("grammar") is not None:
        found["grammar"] = _text(found["grammar"], "--grammar")
    if found.get("json_schema") is not None:
        where = found["json_schema"]
        try:
            schema = msgspec.json.decode(_text(where, "--json-schema"))
        except (msgspec.DecodeError, RecursionError) as error:
            raise click.UsageError(f"--json-schema {where} is not JSON: {error}") from None
        if not isinstance(schema, dict):
            raise click.UsageError(f"--json-schema {where}: a schema is a JSON object")
        found["json_schema"] = schema
    return found


def _text(path: str, option: str) -> str:
    try:
        if Path(path).stat().st_size > MAX_FILE:
            raise click.UsageError(f"{option} {path} is larger than {MAX_FILE} bytes")
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{option} {path}: {error}", Exit.NO_MODEL) from None
