"""`inferd ps`: the loaded models."""

from __future__ import annotations

import click

from inferd.cli.output import json_line, json_option, lines
from inferd.cli.state import State, pass_state


@click.command()
@json_option
@pass_state
def ps(state: State, as_json: bool) -> None:
    """List loaded models with their device, context, memory and load."""
    from inferd.cli.connect import connect
    from inferd_tui.plain import models

    with connect(state) as client:
        found = client.status().models
    if as_json:
        json_line(found)
    else:
        lines(models(found))
