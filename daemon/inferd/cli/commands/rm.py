"""`inferd rm`: remove a model from the store."""

from __future__ import annotations

import click

from inferd.cli.output import note
from inferd.cli.state import State, pass_state


@click.command()
@click.argument("model")
@pass_state
def rm(state: State, model: str) -> None:
    """Remove MODEL from the store. A daemon that has it loaded keeps it until it unloads."""
    state.store.remove(model)
    note(f"{model} is removed")
