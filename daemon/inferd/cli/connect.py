"""Open a client to the daemon the options name, and explain the errors of its library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from inferd.cli.errors import CliError
from inferd.cli.exits import Exit
from inferd_client import Client
from inferd_client.errors import (
    ConnectionFailed,
    ConnectionLost,
    DaemonError,
    GrammarInvalid,
    InferdError,
    InvalidParam,
    Overloaded,
    UnknownModel,
)
from inferd_client.key_file import KeyFile
from inferd_client.options import Timeouts

if TYPE_CHECKING:
    from inferd.cli.state import State


class Where(TypedDict, total=False):
    """One of two ways to name a daemon, as the constructors of clients take them."""

    runtime: Path
    key_file: Path


def connect(state: State, *, timeouts: Timeouts | None = None) -> Client:
    """Return a client; use it in a `with` block. Nothing is sent before the first call."""
    return Client(**where(state), name="inferd-cli", timeouts=timeouts)


def where(state: State) -> Where:
    """Return where the daemon is that the options name: its folder, or the key of one on tcp. Raises CliError."""
    if not state.key_file:
        return {"runtime": state.paths.runtime}
    try:
        KeyFile.load(state.key_file)
    except ValueError as error:
        raise CliError(str(error), Exit.CONFIG) from None
    return {"key_file": Path(state.key_file)}


def explain(error: BaseException) -> tuple[str, Exit] | None:
    """Return message and exit code of an error of the client library, None for any other."""
    if not isinstance(error, InferdError):
        return None
    if isinstance(error, ConnectionFailed):
        return str(error), Exit.NOT_RUNNING
    if isinstance(error, Overloaded):
        wait = f"; try again in {error.retry_after:g} s" if error.retry_after else ""
        return f"{error}{wait}", Exit.BUSY
    return f"{error}{_remedy(error)}", next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILURE)


_CODES: tuple[tuple[type[InferdError], Exit], ...] = (
    (UnknownModel, Exit.NO_MODEL),
    (InvalidParam, Exit.USAGE),
    (GrammarInvalid, Exit.USAGE),
)


def _remedy(error: InferdError) -> str:
    if isinstance(error, UnknownModel):
        return "; `inferd ls` lists what is in the store"
    if isinstance(error, ConnectionLost):
        return "; `inferd status` says whether the daemon is back"
    if isinstance(error, DaemonError) and error.retry_safe:
        return "; it is safe to try again"
    return ""
