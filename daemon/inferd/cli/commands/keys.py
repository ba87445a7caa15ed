"""`inferd keys`: who may use the daemon over tcp."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.exits import Exit
from inferd.cli.output import json_line, json_option, lines, note, rows
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.keys import KeyStore, Role

DEFAULT_PORT = 5555
ANY = ("0.0.0.0", "*", "[::]")
ROLES = click.Choice(["user", "admin"])


@click.group()
def keys() -> None:
    """Manage who may use the daemon over tcp (setting daemon.tcp). Every connection is encrypted (CURVE).

    A user runs requests on the models that are there. An admin may also load, unload, drain and follow events.
    """


@keys.command()
@click.argument("name")
@click.option("--role", type=ROLES, help="Allow it at once, in this role.")
@click.option("--server", metavar="tcp://HOST:PORT", help="Where the client finds this daemon. [default: daemon.tcp]")
@click.option("--out", type=click.Path(path_type=Path), help="The file to write. [default: NAME.key]")
@pass_state
def new(state: State, name: str, role: Role | None, server: str | None, out: Path | None) -> None:
    """Make a key for the client NAME of this machine's daemon and write it to a file.

    Take the file to the client and keep it secret: `inferd --key FILE status`, or Client(key_file=...) in Python.
    """
    from inferd.keys import Pair, check_name, write_secret
    from inferd_client.endpoints import Endpoints

    check_name(name)
    path = out or Path(f"{name}.key")
    if path.exists():
        raise CliError(f"{path} exists; remove it, or name another with --out")
    address = server or _address(state)
    try:
        Endpoints.tcp(address)
    except ValueError as error:
        raise click.UsageError(f"--server: {error}") from None
    store = _store(state)
    ours = store.server(make=True)
    assert ours is not None
    pair = Pair.new()
    write_secret(
        path,
        f"# Key of {name} for an inferd daemon: keep it secret.\n"
        f'server = "{address}"\nserver_key = "{ours.public_key}"\n'
        f'public_key = "{pair.public_key}"\nsecret_key = "{pair.secret_key}"\n',
    )
    note(f"{path} is the key of {name} for {address}")
    if role is None:
        note(f"allow it with: inferd keys allow {name} '{pair.public_key}' --role user")
    else:
        store.allow(name, pair.public_key, role)
        note(f"{name} is allowed as {role}")


@keys.command(context_settings={"ignore_unknown_options": True})  # a key may begin with a dash
@click.argument("name")
@click.argument("public_key")
@click.option("--role", type=ROLES, required=True, help="What it may do.")
@pass_state
def allow(state: State, name: str, public_key: str, role: Role) -> None:
    """Let the holder of PUBLIC_KEY in as NAME, or change its role. A running daemon needs no restart."""
    _store(state).allow(name, public_key, role)
    note(f"{name} is allowed as {role}")


@keys.command()
@click.argument("name", shell_complete=complete.clients)
@pass_state
def revoke(state: State, name: str) -> None:
    """Take NAME off the allow-list; a running daemon drops its connections within moments."""
    _store(state).revoke(name)
    note(f"{name} is no longer allowed")


@keys.command("list")
@json_option
@pass_state
def list_(state: State, as_json: bool) -> None:
    """Show the allowed clients and the public key of this machine's daemon."""
    store = _store(state)
    server, clients = store.server(), store.clients()
    if as_json:
        json_line({"server": server.public_key if server else None, "clients": clients})
        return
    lines([f"server: {server.public_key if server else 'no key yet'}"])
    if clients:
        rows(("NAME", "ROLE", "KEY"), [(name, client.role, client.public_key) for name, client in clients.items()])


def _store(state: State) -> KeyStore:
    from inferd.keys import KeyStore

    return KeyStore(state.paths.state)


def _address(state: State) -> str:
    """The address that clients elsewhere use: daemon.tcp with a host name in place of "all addresses"."""
    listen = state.loaded.config.daemon.tcp
    if not listen:
        return f"tcp://{socket.gethostname()}:{DEFAULT_PORT}"
    host, _, port = listen.removeprefix("tcp://").rpartition(":")
    if not port.isdigit():
        raise CliError(f"daemon.tcp = {listen} is not tcp://HOST:PORT", Exit.CONFIG)
    return f"tcp://{socket.gethostname() if host in ANY else host}:{port}"
