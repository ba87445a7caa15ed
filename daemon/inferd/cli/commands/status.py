"""`inferd status`: what the daemon is doing."""

from __future__ import annotations

import time

import click

from inferd.cli.output import json_line, json_option, lines, on_terminal
from inferd.cli.state import State, pass_state


@click.command()
@click.option("--watch", is_flag=True, help="Print again and again until Ctrl-C; with --json one line each.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two.")
@json_option
@pass_state
def status(state: State, watch: bool, interval: float, as_json: bool) -> None:
    """Show models, memory, latencies and requests. Plain lines, made for screen readers too."""
    from inferd.cli.connect import connect
    from inferd_tui.plain import render

    with connect(state) as client:
        while True:
            found = client.status()
            if as_json:
                json_line(found, indent=0 if watch else 2)
            else:
                lines(render(found))
            if not watch:
                return
            if not as_json:
                click.echo("\n" if on_terminal() else "")
            time.sleep(interval)
