"""The unit file of a scope with the command of this installation, and whether a service could run it."""

from __future__ import annotations

import grp
import os
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

Scope = Literal["user", "system"]

UNIT = "inferd.service"
_FILES: dict[Scope, str] = {"user": "inferd-user.service", "system": "inferd.service"}
_PLAIN = re.compile(r"[A-Za-z0-9_@/.,:=+-]+")
_HIDDEN = ("/home", "/root", "/run/user")
"""What ProtectHome=yes hides from a service."""


class ServiceError(RuntimeError):
    """The service cannot be put in place or asked; one line with the remedy."""


def render(scope: Scope, command: Sequence[str]) -> str:
    """Return the unit file that starts `command` (absolute path first, then its arguments).

    Groups that this machine lacks are left out: systemd would not start the service with them.
    """
    text = files("inferd.service").joinpath(_FILES[scope]).read_text()
    text = re.sub(r"(?m)^SupplementaryGroups=(.*)\n", lambda found: _groups(found[1].split()), text)
    return re.sub(r"(?m)^ExecStart=.*$", lambda _: f"ExecStart={' '.join(map(quote, command))}", text)


def _groups(names: list[str]) -> str:
    there = [name for name in names if name in {group.gr_name for group in grp.getgrall()}]
    return f"SupplementaryGroups={' '.join(there)}\n" if there else ""


def quote(word: str) -> str:
    """Write one argument so that systemd passes it on unchanged (systemd.service(5), COMMAND LINES)."""
    doubled = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(doubled):
        return doubled
    escaped = doubled.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def own_command() -> list[str]:
    """Return the command that runs this installation: its script, else the interpreter and the module."""
    script = Path(sys.executable).with_name("inferd")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "inferd.cli.main"]


def check_reachable(command: Path) -> None:
    """Raise ServiceError when a service with a user of its own could not run `command`."""
    for part in (command, Path(sys.executable), Path(sys.prefix)):
        found = part.resolve()
        for text in map(str, (part, found)):
            if text.startswith(tuple(f"{folder}/" for folder in _HIDDEN)):
                raise ServiceError(f"{text} is hidden from a system service; {_REMEDY}")
        closed = next((p for p in reversed([found, *found.parents]) if not p.stat().st_mode & 0o001), None)
        if closed is not None:
            raise ServiceError(f"{closed} is closed to other users, and so to a system service; {_REMEDY}")


_REMEDY = (
    "install inferd where all may read it, e.g. python3 -m venv /opt/inferd and /opt/inferd/bin/pip install "
    "'inferd[daemon]', or make it a service of this user: inferd service install --user"
)
