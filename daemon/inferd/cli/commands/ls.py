"""`inferd ls`: the models in the store."""

from __future__ import annotations

import click

from inferd.cli.output import json_line, json_option, note, rows
from inferd.cli.state import State, pass_state


@click.command()
@json_option
@pass_state
def ls(state: State, as_json: bool) -> None:
    """List the models in the store; no daemon is needed."""
    from inferd_tui.units import number, size

    found = state.store.list()
    if as_json:
        json_line(found)
        return
    if not found:
        note(f"no model in {state.paths.models}; get one: inferd pull smollm2-135m")
        return
    cells = [(m.name, m.architecture, m.quantization, number(m.context), size(m.bytes), m.problem) for m in found]
    rows(("NAME", "ARCHITECTURE", "QUANTIZATION", "CONTEXT", "SIZE", "PROBLEM"), cells)
