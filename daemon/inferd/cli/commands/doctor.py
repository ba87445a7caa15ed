"""`inferd doctor`: look the installation over."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from inferd.cli.exits import Exit
from inferd.cli.output import json_line, json_option, lines
from inferd.cli.state import State, pass_state

if TYPE_CHECKING:
    from inferd.doctor import Examined, Finding


@click.command()
@click.option("--quiet", is_flag=True, help="Print warnings and failures only.")
@json_option
@pass_state
def doctor(state: State, quiet: bool, as_json: bool) -> int:
    """Check software, settings, folders, the daemon, memory, GPUs, kernels, plugins and models.

    Each line is ok, a warning or a failure with its remedy. Exit code 1 when there is a failure.
    """
    from inferd.config.errors import ConfigError
    from inferd.doctor import examine

    found: list[Finding] = []
    try:
        what = _examined(state)
    except ConfigError as error:
        found = [_unreadable(error)]
        what = None
        _tell(found, quiet, as_json)
    for finding in examine(what) if what is not None else ():
        found.append(finding)
        _tell([finding], quiet, as_json)
    failed = any(finding.level == "failure" for finding in found)
    if as_json:
        json_line({"ok": not failed, "findings": [asdict(finding) for finding in found]})
    return Exit.FAILURE if failed else Exit.OK


def _examined(state: State) -> Examined:
    from inferd.doctor import Examined

    return Examined(state.loaded.config, state.loaded.files, state.paths)


def _unreadable(error: Exception) -> Finding:
    from inferd.doctor import Finding

    return Finding("failure", "config", str(error), "mend the setting; nothing else can be checked without it")


def _tell(found: list[Finding], quiet: bool, as_json: bool) -> None:
    if as_json:
        return
    for finding in found:
        if not quiet or finding.level != "ok":
            lines([f"{finding.level:<8} {finding.topic:<9} {finding.text}"])
            lines([f"{'':<18} -> {finding.remedy}"] if finding.remedy else [])
