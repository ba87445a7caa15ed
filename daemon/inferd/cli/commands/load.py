"""`inferd load` and `inferd unload`."""

from __future__ import annotations

import click

from inferd.cli import complete
from inferd.cli.output import note
from inferd.cli.progress import LoadDisplay
from inferd.cli.state import State, pass_state


@click.command()
@click.argument("model", shell_complete=complete.models_or_files)
@click.option("--keep-alive", type=float, metavar="SECONDS", help="Idle time before it unloads; negative = never.")
@pass_state
def load(state: State, model: str, keep_alive: float | None) -> None:
    """Load MODEL and return when it is ready."""
    from inferd.cli.connect import connect

    with connect(state) as client, LoadDisplay(model) as display:
        client.load(_absolute(model), keep_alive_s=keep_alive, on_progress=display.update)
    note(f"{model} is ready")


@click.command()
@click.argument("model", shell_complete=complete.models_or_files)
@click.option("--force", is_flag=True, help="Cancel its running requests.")
@pass_state
def unload(state: State, model: str, force: bool) -> None:
    """Unload MODEL when its running requests are done; its memory is then free."""
    from inferd.cli.connect import connect

    with connect(state) as client:
        detail = client.unload(_absolute(model), force=force)
    note(f"{model} is {detail}")


def _absolute(model: str) -> str:
    """The daemon has another working directory: make paths of files here absolute."""
    from pathlib import Path

    return str(Path(model).absolute()) if "/" in model or Path(model).exists() else model
