"""How commands write: text and JSON to stdout, notes and progress to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from inferd_tui.escape import clean, clean_json, clean_line
from inferd_tui.units import table

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Add `--json` to a command that reads."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(function)


def write(text: str) -> None:
    """Write a piece of model output at once, made safe for a terminal."""
    click.echo(clean(text), nl=False)


def lines(texts: Iterable[str]) -> None:
    """Print whole lines; control characters inside them become visible."""
    for text in texts:
        click.echo(clean(text))


def rows(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    for line in table(headers, cells):
        click.echo(line)


def note(text: str) -> None:
    """Say something that is no result."""
    click.echo(f"inferd: {clean_line(text)}", err=True)


def json_line(value: Any, *, indent: int = 2) -> None:
    """Print a value or message struct as JSON; `indent=0` keeps it on one line."""
    click.echo(to_json(value, indent=indent))


def to_json(value: Any, *, indent: int = 2) -> str:
    """Encode a value; fields a struct leaves out at their default are written too."""
    import msgspec

    encoded = msgspec.json.encode(_whole(value))
    if indent:
        encoded = msgspec.json.format(encoded, indent=indent)
    return clean_json(encoded.decode())


def _whole(value: Any) -> Any:
    """Turn structs into dicts with all their fields, so that scripts find the same keys every time."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(k): _whole(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(v) for v in value]
    return value


def on_terminal() -> bool:
    """Whether stdout is a terminal a person looks at."""
    return sys.stdout.isatty()
