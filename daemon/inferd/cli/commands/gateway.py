"""`inferd gateway`: serve the daemon's models over HTTP, as the OpenAI API."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferd.cli.errors import CliError
from inferd.cli.exits import Exit
from inferd.cli.output import note
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd_gateway import Settings

TOKEN_FILE = "gateway.token"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8321, show_default=True, type=click.IntRange(0, 65535), help="0 = any free one.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Bearer token; made when absent. [default: state folder]"
)
@click.option("--no-auth", is_flag=True, help="Ask no token. Only on a loopback address.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A further name accepted in the Host header.")
@click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="A web page that may call; none by default.")
@click.option(
    "--timeout", default=600.0, show_default=True, type=click.FloatRange(min=1), help="Seconds for an answer."
)
@click.option(
    "--tool-format",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "hermes", "llama3", "mistral"]),
    help="How the model writes tool calls.",
)
@pass_state
def gateway(
    state: State,
    host: str,
    port: int,
    token_file: Path | None,
    no_auth: bool,
    allow_host: tuple[str, ...],
    cors_origin: tuple[str, ...],
    timeout: float,
    tool_format: str,
) -> None:
    """Serve /v1/models, /v1/completions, /v1/chat/completions, /health and /metrics in the foreground.

    Any OpenAI client works with the base URL and the token that are printed at the start. With `inferd --key FILE
    gateway` the models are those of a daemon on tcp.
    """
    try:
        from inferd.cli.connect import where
        from inferd_gateway import Settings
        from inferd_gateway.server import is_loopback
    except ModuleNotFoundError as error:
        raise CliError(f"{error.msg}; install the gateway: pip install 'inferd[gateway]'") from None

    if no_auth and token_file is not None:
        raise click.UsageError("--no-auth and --token-file exclude each other")
    if no_auth and not is_loopback(host):
        raise click.UsageError(f"--no-auth would let everyone on the network use {host}; leave it out")
    token = None if no_auth else _token(token_file or state.paths.state / TOKEN_FILE)
    settings = Settings(
        **where(state),
        token=token,
        allowed_hosts=allow_host,
        cors_origins=cors_origin,
        request_timeout_s=timeout,
        tool_format=tool_format,
    )
    _serve(settings, _bound(host, port), local=is_loopback(host))


def _token(path: Path) -> str:
    from inferd_gateway.token_file import read_or_make

    try:
        token, made = read_or_make(path)
    except (ValueError, OSError) as error:
        raise CliError(f"token file: {error}", Exit.CONFIG) from None
    note(f"token: {path}{' (new)' if made else ''}")
    return token


def _bound(host: str, port: int) -> socket.socket:
    from inferd_gateway.server import bind

    try:
        return bind(host, port)
    except OSError as error:
        raise CliError(f"cannot listen on {host}:{port}: {error.strerror or error}", Exit.BUSY) from None


def _serve(settings: Settings, listener: socket.socket, *, local: bool) -> None:
    from inferd_gateway.server import make_server

    address, port = listener.getsockname()[:2]
    if not local:
        note("requests and the token cross the network unencrypted; put a TLS proxy in front")
    click.echo(f"serving http://{f'[{address}]' if ':' in address else address}:{port}/v1")
    make_server(settings).run(sockets=[listener])
