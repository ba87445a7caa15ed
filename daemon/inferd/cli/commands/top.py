"""`inferd top`: watch the daemon live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from inferd.cli.errors import CliError
from inferd.cli.output import json_line, json_option, lines, on_terminal
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd_client import Client
    from inferd_client.protocol import StatusReply
    from inferd_tui.glyphs import Glyphs

KEY_PATIENCE_S = 1.0
"""The full-screen view waits no longer for a snapshot, so that it can end at once."""


@click.command()
@click.option("--once", is_flag=True, help="Print one snapshot and leave.")
@click.option("--plain", is_flag=True, help="Print snapshots as lines instead of the full-screen view.")
@click.option("--ascii", "only_ascii", is_flag=True, help="Draw with ASCII alone.")
@click.option("--light", is_flag=True, help="Start with the light theme.")
@json_option
@pass_state
def top(state: State, once: bool, plain: bool, only_ascii: bool, light: bool, as_json: bool) -> None:
    """Follow the snapshots that the daemon publishes: full-screen on a terminal, lines elsewhere."""
    from inferd.cli.connect import connect
    from inferd_tui.glyphs import ASCII, UNICODE

    glyphs = ASCII if only_ascii or not _speaks_unicode() else UNICODE
    with connect(state) as client:
        if state.key_file:
            _check_role(client)
        if once or plain or as_json or not on_terminal():
            _print(client, once, as_json, glyphs)
        else:
            _full_screen(client, glyphs, light)


def _check_role(client: Client) -> None:
    """Over tcp only admins may follow events; others would wait in vain."""
    client.status()
    if client.daemon is not None and client.daemon.role != "admin":
        raise CliError("following events over tcp needs the role admin; see: inferd status --watch")


def _speaks_unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _print(client: Client, once: bool, as_json: bool, glyphs: Glyphs) -> None:
    from inferd_tui.feed import Feed

    with Feed(client) as feed:
        _show(feed.next(), as_json, glyphs, indent=2 if once else 0)
        while not once:
            _show(feed.next(), as_json, glyphs, indent=0)


def _show(snapshot: StatusReply, as_json: bool, glyphs: Glyphs, *, indent: int) -> None:
    from inferd_tui.plain import render

    if as_json:
        json_line(snapshot, indent=indent)
    else:
        lines(map(glyphs.text, render(snapshot) if indent else [*render(snapshot), ""]))


def _full_screen(client: Client, glyphs: Glyphs, light: bool) -> None:
    from inferd_tui.app import Monitor
    from inferd_tui.feed import Feed

    with Feed(client, patience_s=KEY_PATIENCE_S) as feed:
        Monitor(feed, glyphs=glyphs, light=light).run()
