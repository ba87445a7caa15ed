"""`inferd cancel`: end a request."""

from __future__ import annotations

import click

from inferd.cli.errors import CliError
from inferd.cli.output import note
from inferd.cli.state import State, pass_state


@click.command()
@click.argument("request")
@pass_state
def cancel(state: State, request: str) -> None:
    """Cancel the request with the id REQUEST, whichever program sent it (see `inferd status`)."""
    from inferd.cli.connect import connect

    with connect(state) as client:
        if request not in {running.id for running in client.status().requests}:
            raise CliError(f"no request {request!r} is running; `inferd status` lists them")
        client.cancel(request, anywhere=True)
    note(f"{request} is cancelled")
