"""`inferd chat`: talk to a model."""

from __future__ import annotations

from typing import Any

import click

from inferd.cli import complete
from inferd.cli.sampling import given, sampling_options
from inferd.cli.state import State, pass_state


@click.command()
@click.option(
    "-m", "--model", default="", shell_complete=complete.models, help="A loaded or stored model; default: the daemon's."
)
@click.option("--system", help="Instructions for the whole conversation.")
@sampling_options
@pass_state
def chat(state: State, model: str, system: str | None, **sampling: Any) -> None:
    """Talk to a model. /help lists commands; Ctrl-C cancels the answer, Ctrl-D leaves.

    A line that ends in a backslash goes on in the next one; a line of three double quotes begins
    and ends a text of several lines.
    """
    from inferd.cli.connect import connect
    from inferd.cli.conversation import Conversation
    from inferd.cli.prompt import Reader

    with connect(state) as client:
        client.status()  # no daemon: say so before the user has typed
        Conversation(client, Reader(), model=model, system=system, options=given(sampling)).run()
