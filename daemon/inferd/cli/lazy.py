"""A click group that knows its commands by name and imports one only when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    target: str
    """`module:attribute` of the command."""
    help: str
    """The line that lists show, so that they need no import."""


class LazyGroup(click.Group):
    """Commands come from a table."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy] = {}, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        return getattr(import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.lazy and not args[0].startswith("-"):
            self._refuse(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: click.Context, name: str) -> None:
        from difflib import get_close_matches

        close = get_close_matches(name, self.lazy, 1)
        hint = f" (did you mean `{close[0]}`?)" if close else ""
        raise click.UsageError(f"No such command `{name}`{hint}", ctx)
