"""`inferd cancel`: end a request."""

from __future__ import annotations

import click

from inferd.cli.state import State, pass_state


@click.command()
@click.argument("request")
@pass_state
def cancel(state: State, request: str) -> None:
    """Cancel the request with the id REQUEST (see `inferd status`)."""
    from inferd.cli.connect import connect

    with connect(state) as client:
        client.cancel(request)
