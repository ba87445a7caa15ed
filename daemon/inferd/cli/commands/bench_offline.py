"""`inferd bench offline`, and `inferd bench` alone: what each phase of a model does on this machine."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from inferd.cli import complete
from inferd.cli.errors import CliError
from inferd.cli.output import json_option, lines, note, rows, to_json
from inferd.cli.state import State, pass_state

PHASES = ("prefill", "decode", "batched", "mixed")


@click.command()
@click.option(
    "-m", "--model", default="", shell_complete=complete.models, help="A stored model or a path; default: the daemon's."
)
@click.option(
    "--phase", "phases", type=click.Choice(PHASES), multiple=True, help="Only this one. May be given several times."
)
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each phase.")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Draw the results (needs inferd[plot]).")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here as well, in its own file."
)
@json_option
@pass_state
def offline(
    state: State,
    model: str,
    phases: tuple[str, ...],
    repeats: int,
    png: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure prefill, decode, batches, mixed lengths, cold start and memory, without a daemon.

    The engine is built with the settings in force: compare two by `--set`, for instance
    `inferd --set engine.linear=torch bench offline`.
    """
    from inferd.bench import offline as bench
    from inferd.bench import render
    from inferd.engine.settings import WorkerSettings

    config = state.loaded.config
    name = model or config.default_model
    settings = WorkerSettings(
        name=name, path=str(state.resolve(name)), config=config.for_model(name), cache=str(state.paths.cache)
    )
    chosen = [case for case in bench.cases() if not phases or case.phase in phases]
    try:
        report = bench.run(settings, _machine(), chosen, repeats=repeats, note=note)
    except RuntimeError as error:
        raise CliError(str(error)) from None
    text = to_json(report)
    if output is not None:
        output.write_text(text + "\n")
    if png is not None:
        try:
            render.picture(report, png)
        except ImportError as error:
            raise CliError(f"{error}: install inferd[plot]") from None
    if as_json:
        lines([text])
        return
    lines([f"{report.model}, {report.machine}, {report.exactness}"])
    rows(render.HEADERS, list(render.cells(report)))


def _machine() -> str:
    import os

    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors"
