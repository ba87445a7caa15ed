"""`inferd traffic`: what the daemon has noted of the lengths and times of requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from inferd.cli.errors import CliError
from inferd.cli.output import json_line, json_option, lines, note, to_json
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd_client.protocol import TrafficReport

model_option = click.option("-m", "--model", default="", help="Only of this model.")


@click.group()
def traffic() -> None:
    """Show, export and clear the traffic record: lengths, times and prefix reuse of requests, never text.

    Switch it off with traffic.record = false.
    """


@traffic.command()
@model_option
@json_option
@pass_state
def show(state: State, model: str, as_json: bool) -> None:
    """Show histograms of input and output lengths (ISL, OSL) and their P50, P95 and P99, singly and jointly."""
    from inferd.cli.traffic_view import render, summary

    found = _reports(state, model)
    if as_json:
        json_line([summary(report) for report in found])
    elif not found:
        note("no requests are on record yet")
    else:
        lines(line for report in found for line in render(report))


@traffic.command()
@model_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file; default: stdout.")
@pass_state
def export(state: State, model: str, output: Path | None) -> None:
    """Write the whole record as JSON: joint histogram, gaps, reuse, and the latest requests one by one."""
    text = to_json(_reports(state, model))
    if output is None:
        click.echo(text)
    else:
        output.write_text(text + "\n")
        note(f"the record is in {output}")


@traffic.command()
@model_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_state
def clear(state: State, model: str, yes: bool) -> None:
    """Forget the record, in the daemon and on disk."""
    if not yes and not click.confirm(f"Forget the traffic record of {model or 'all models'}?", err=True):
        raise click.Abort
    gone = _clear(state, model)
    note(f"{sum(report.requests for report in gone)} requests are forgotten")


def _reports(state: State, model: str) -> tuple[TrafficReport, ...]:
    """Ask the daemon; without one read what the last one left. Raises CliError."""
    from inferd.cli.connect import connect
    from inferd_client.errors import ConnectionFailed

    try:
        with connect(state) as client:
            reply = client.traffic(model)
    except ConnectionFailed:
        return _on_disk(state, model)
    if not reply.enabled:
        raise CliError("the daemon keeps no traffic record; set traffic.record = true and restart it")
    return reply.models


def _on_disk(state: State, model: str) -> tuple[TrafficReport, ...]:
    from inferd.traffic import file

    try:
        return tuple(report for report in file.read(state.paths.state) if model in ("", report.model))
    except ValueError as error:
        raise CliError(f"{error}; `inferd traffic clear` removes it") from None


def _clear(state: State, model: str) -> tuple[TrafficReport, ...]:
    from inferd.cli.connect import connect
    from inferd.traffic import file
    from inferd_client.errors import ConnectionFailed

    try:
        with connect(state) as client:
            return client.traffic(model, clear=True).models
    except ConnectionFailed:
        return file.forget(state.paths.state, model)
