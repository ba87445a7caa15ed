"""`inferd rm`: remove a model from the store."""

from __future__ import annotations

from pathlib import Path

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.exits import Exit
from inferd.cli.output import note
from inferd.cli.state import State, pass_state


@click.command()
@click.argument("model", shell_complete=complete.models)
@pass_state
def rm(state: State, model: str) -> None:
    """Remove MODEL from the store. A daemon that has it loaded keeps it until it unloads."""
    from inferd.load.errors import LoadError
    from inferd.load.repack_cache import RepackCache

    cache = RepackCache(state.paths.cache, 0)
    stored = [Path(known.path) for known in state.store.list() if known.name == model]
    size = sum(map(cache.remove, stored))
    try:
        state.store.remove(model)
    except LoadError as error:
        raise CliError(str(error), Exit.FAILURE if stored else Exit.NO_MODEL) from None
    note(f"{model} is removed" + (f", and {size / 1e6:.0f} MB of repacked weights" if size else ""))
