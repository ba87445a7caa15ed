"""`inferd config`: show where settings come from, and change the user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.exits import Exit
from inferd.cli.output import json_line, json_option, lines, note, rows, to_json
from inferd.cli.state import State, pass_state


@click.group()
def config() -> None:
    """Show and change settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Say which layer set each value.")
@json_option
@pass_state
def show(state: State, origin: bool, as_json: bool) -> None:
    """Print every setting in force."""
    values, origins = _flat(state), state.loaded.origins
    if as_json:
        json_line(
            {k: {"value": v, "origin": origins.get(k, "default")} for k, v in values.items()} if origin else values
        )
    elif origin:
        rows(("KEY", "VALUE", "ORIGIN"), [(k, _text(v), origins.get(k, "default")) for k, v in values.items()])
    else:
        lines(f"{k} = {_text(v)}" for k, v in values.items())


@config.command()
@click.argument("key", shell_complete=complete.settings)
@json_option
@pass_state
def get(state: State, key: str, as_json: bool) -> None:
    """Print one setting, or all settings of a table."""
    from inferd.config.check import nearest

    values = {k: v for k, v in _flat(state).items() if k == key or k.startswith(f"{key}.")}
    if not values:
        raise CliError(f"unknown key `{key}`{nearest(key)}", Exit.CONFIG)
    if as_json:
        json_line(values.get(key, values))
    elif key in values:
        lines([_plain(values[key])])
    else:
        lines(f"{k} = {_text(v)}" for k, v in values.items())


@config.command("set")
@click.argument("setting", metavar="KEY=VALUE", shell_complete=complete.settings)
@click.option("--file", "path", type=click.Path(path_type=Path), help="Another file than the user's.")
@pass_state
def set_(state: State, setting: str, path: Path | None) -> None:
    """Set one value in the user's config file; comments in it stay."""
    from inferd.config.edit import set_value
    from inferd.config.layers import parse_setting

    key, value = parse_setting(setting)
    target = path or state.user_file
    set_value(target, key, value)
    note(f"{key} is set in {target}; a running daemon keeps its settings until it restarts")


@config.command()
@click.argument("key", shell_complete=complete.settings)
@click.option("--file", "path", type=click.Path(path_type=Path), help="Another file than the user's.")
@pass_state
def unset(state: State, key: str, path: Path | None) -> None:
    """Remove one value from the user's config file."""
    from inferd.config.edit import unset_value

    target = path or state.user_file
    if not unset_value(target, key):
        raise CliError(f"{target} does not set `{key}`; `inferd config show --origin` says which file does")


@config.command("path")
@json_option
@pass_state
def path_(state: State, as_json: bool) -> None:
    """Print the config files in use and the folders of the daemon."""
    paths = state.paths
    found = {
        "files": [str(file) for file in state.loaded.files],
        "user_file": str(state.user_file),
        "runtime": str(paths.runtime),
        "models": str(paths.models),
        "cache": str(paths.cache),
        "state": str(paths.state),
    }
    if as_json:
        json_line(found)
    else:
        lines(
            f"{name}: {', '.join(value) or 'none' if isinstance(value, list) else value}"
            for name, value in found.items()
        )


def _flat(state: State) -> dict[str, Any]:
    """Return dotted key to value of the settings in force."""
    import msgspec

    from inferd.config.check import leaves

    return dict(leaves(msgspec.to_builtins(state.loaded.config)))


def _text(value: Any) -> str:
    return to_json(value, indent=0)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)
