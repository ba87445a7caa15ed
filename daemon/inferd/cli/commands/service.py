"""`inferd service`: run the daemon under systemd."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferd.cli.errors import CliError
from inferd.cli.exits import Exit
from inferd.cli.output import json_line, json_option, lines, note
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.service.unit import Scope


def _scope_option(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--user", "scope", flag_value="user", help="Of this user. [default, but for root]")(
        function
    )
    return click.option("--system", "scope", flag_value="system", help="Of the machine. [default for root]")(function)


def _scope(given: str | None) -> Scope:
    if given is None:
        return "system" if os.geteuid() == 0 else "user"
    return "system" if given == "system" else "user"


@click.group()
def service() -> None:
    """Run the daemon as a service of systemd: started at boot or login, restarted when it fails."""


@service.command()
@_scope_option
@click.option("--no-start", is_flag=True, help="Enable it only.")
@click.option("--print", "only_print", is_flag=True, help="Print the unit file and change nothing.")
@pass_state
def install(state: State, scope: str | None, no_start: bool, only_print: bool) -> None:
    """Write the unit file, enable it and start it; returns when the model serves.

    --config and --set of this call become those of the service.
    """
    from inferd.service.systemd import Systemd
    from inferd.service.unit import ServiceError, check_reachable, own_command, render

    where = _scope(scope)
    command = [*own_command(), *_options(state), "serve"]
    text = render(where, command)
    if only_print:
        click.echo(text, nl=False)
        return
    try:
        if where == "system":
            check_reachable(Path(command[0]))
        manager = Systemd(where)
        manager.install(text, start=not no_start)
    except ServiceError as error:
        raise CliError(str(error)) from None
    note(f"{manager.unit} is in place")
    note(_NEXT[where])


_NEXT: dict[Scope, str] = {
    "user": "to let it run while you are not logged in: loginctl enable-linger",
    "system": "settings: /etc/inferd/config.toml; get a model for it with: "
    "sudo inferd --set paths.models=/var/lib/inferd/models pull NAME",
}


@service.command()
@_scope_option
@json_option
def status(scope: str | None, as_json: bool) -> int:
    """Show what systemd knows of the service; exit code 69 when it does not run."""
    from inferd.service.systemd import Systemd
    from inferd.service.unit import ServiceError

    where = _scope(scope)
    try:
        found = Systemd(where).state()
    except ServiceError as error:
        raise CliError(str(error)) from None
    active = found.get("ActiveState") == "active"
    if as_json:
        json_line({"scope": where, "running": active} | found)
    else:
        lines(_describe(where, found))
    return Exit.OK if active else Exit.NOT_RUNNING


@service.command()
@_scope_option
def uninstall(scope: str | None) -> None:
    """Stop the service and remove its unit file; settings and models stay."""
    from inferd.service.systemd import Systemd
    from inferd.service.unit import ServiceError

    manager = Systemd(_scope(scope))
    try:
        manager.uninstall()
    except ServiceError as error:
        raise CliError(str(error)) from None
    note(f"{manager.unit} is removed")


def _options(state: State) -> list[str]:
    """The global options of this call, for the command of the service."""
    config = ["--config", str(Path(state.config_path).expanduser().absolute())] if state.config_path else []
    return [*config, *(word for setting in state.settings for word in ("--set", setting))]


def _describe(scope: Scope, found: dict[str, str]) -> list[str]:
    if found.get("LoadState") == "not-found":
        return [f"inferd.service is not installed for this {scope}; inferd service install --{scope}"]
    user = "--user " if scope == "user" else ""
    said = [f"inferd.service ({scope}): {found.get('ActiveState')} ({found.get('SubState')})"]
    if found.get("ActiveState") == "active":
        said[0] += f" since {found.get('ActiveEnterTimestamp')}, pid {found.get('MainPID')}"
    elif found.get("Result", "success") != "success":
        said[0] += f", {found['Result']}, exit code {found.get('ExecMainStatus')}"
    said += [f"says: {found['StatusText']}"] if found.get("StatusText") else []
    said += [f"restarts: {found.get('NRestarts')}", f"at boot: {found.get('UnitFileState')}"]
    return [*said, f"unit: {found.get('FragmentPath')}", f"log: journalctl {user}-u inferd -e"]
