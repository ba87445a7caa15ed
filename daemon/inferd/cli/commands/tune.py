"""`inferd tune`: fit what ships with defaults to this machine."""

from __future__ import annotations

from pathlib import Path

import click

from inferd.cli.errors import CliError
from inferd.cli.output import note


@click.group()
def tune() -> None:
    """Fit what ships with defaults to this machine."""


@tune.command()
@click.option("--device", default="cuda", show_default=True, help="The GPU: cuda, cuda:1...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write here instead of where the kernels look.")
def kernels(device: str, out: Path | None) -> None:
    """Find the fastest tile sizes of the GPU kernels. Takes minutes and wants the GPU to itself.

    The result is a JSON file named after the GPU beside the defaults of its architecture.
    """
    from inferd.engine.tuning import tune_kernels

    try:
        path = tune_kernels(device, out, lambda name, found: note(f"{name}: {found}"))
    except ValueError as error:
        raise CliError(f"cannot tune: {error}") from error
    click.echo(path)
