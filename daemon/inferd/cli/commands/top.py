"""`inferd top`: watch the daemon live."""

from __future__ import annotations

import click

from inferd.cli.output import json_line, json_option, lines
from inferd.cli.state import State, pass_state


@click.command()
@click.option("--once", is_flag=True, help="Print one snapshot and leave.")
@click.option("--plain", is_flag=True, help="Print snapshots as lines instead of the full-screen view.")
@json_option
@pass_state
def top(state: State, once: bool, plain: bool, as_json: bool) -> None:
    """Follow the snapshots that the daemon publishes: full-screen on a terminal, lines elsewhere."""
    from inferd.cli.connect import connect
    from inferd.cli.output import on_terminal
    from inferd_tui.feed import Feed
    from inferd_tui.plain import render

    with connect(state) as client, Feed(client) as feed:
        if once:
            snapshot = feed.next()
            if as_json:
                json_line(snapshot)
            else:
                lines(render(snapshot))
            return
        if on_terminal() and not plain and not as_json:
            from inferd_tui.app import Monitor

            Monitor(feed).run()
            return
        while True:
            snapshot = feed.next()
            if as_json:
                json_line(snapshot, indent=0)
            else:
                lines([*render(snapshot), ""])
