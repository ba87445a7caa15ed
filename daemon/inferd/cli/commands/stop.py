"""`inferd stop`: drain the daemon and wait until it is gone."""

from __future__ import annotations

import contextlib
import os
import select

import click

from inferd.cli.errors import CliError
from inferd.cli.output import note
from inferd.cli.state import State, pass_state

GRACE_S = 15.0
"""Time past the drain for ending the workers."""


@click.command()
@click.option("--timeout", type=click.FloatRange(0), help="Seconds running requests may still take; config: drain_s.")
@click.option("--no-wait", is_flag=True, help="Return at once; the daemon ends by itself.")
@pass_state
def stop(state: State, timeout: float | None, no_wait: bool) -> None:
    """Refuse new requests, finish running ones, then exit. Returns when the daemon has ended."""
    from inferd.cli.connect import connect

    with connect(state) as client:
        pid = client.status().pid
        handle = _open_process(pid)
        client.drain(timeout)
    if no_wait or handle is None:
        return
    patience = (state.loaded.config.daemon.drain_s if timeout is None else timeout) + GRACE_S
    try:
        ended = select.select([handle], [], [], patience)[0]
    finally:
        os.close(handle)
    if not ended:
        raise CliError(f"the daemon (pid {pid}) is still there after {patience:g} s; end it with: kill {pid}")
    note(f"the daemon (pid {pid}) has ended")


def _open_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; it cannot be mixed up by pid reuse."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None
