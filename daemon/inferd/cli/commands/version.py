"""`inferd version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import click

from inferd.cli.output import json_line, json_option, lines

PARTS = ("torch", "pyzmq", "msgspec", "tokenizers", "triton")


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the versions of inferd, its protocol and what it stands on; imports none of it."""
    from inferd_client.protocol import MAJOR, MINOR

    found = {"inferd": _version("inferd"), "protocol": f"{MAJOR}.{MINOR}", "python": platform.python_version()}
    found |= {name: _version(name) for name in PARTS}
    if as_json:
        json_line(found)
    else:
        lines(f"{name} {value or 'not installed'}" for name, value in found.items())


def _version(name: str) -> str | None:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None
