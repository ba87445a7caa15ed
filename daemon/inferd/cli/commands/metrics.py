"""`inferd metrics`: all metrics as Prometheus text."""

from __future__ import annotations

import click

from inferd.cli.output import lines
from inferd.cli.state import State, pass_state


@click.command()
@pass_state
def metrics(state: State) -> None:
    """Print all metrics of the daemon in the text format of Prometheus.

    To have them scraped, set metrics.port (the loopback alone) or use /metrics of the gateway.
    """
    from inferd.cli.connect import connect

    with connect(state) as client:
        text = client.metrics()
    lines(text.splitlines())
