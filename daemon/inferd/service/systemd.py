"""Put the unit in place, ask for its state, take it away: through `systemctl`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from inferd.service.unit import UNIT, Scope, ServiceError

SYSTEM_FOLDER = Path("/etc/systemd/system")
MARK = "# inferd for "
"""How the first line of our unit files begins."""
PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainStatus",
    "StatusText",
    "MainPID",
    "NRestarts",
    "ActiveEnterTimestamp",
    "FragmentPath",
)
_EXITS = {
    "66": "its model is not there; `inferd serve` says which (exit code 66)",
    "75": "a daemon runs already; stop it with: inferd stop (exit code 75)",
    "78": "a setting or folder is wrong; `inferd doctor` says which (exit code 78)",
}
"""Exit codes of the daemon that come before it can say more."""
TIMEOUT_S = 300.0
"""For a start, which lasts as long as the load of a model."""


class Systemd:
    """One manager: the system's, or that of this user."""

    def __init__(self, scope: Scope, folder: Path | None = None) -> None:
        self.scope: Scope = scope
        self.unit = (folder or _folder(scope)) / UNIT

    def install(self, text: str, *, start: bool) -> None:
        """Write the unit and enable it; with `start` also start it and wait until it serves. Raises ServiceError."""
        self._check_ours()
        self._run("--version")
        try:
            self.unit.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.unit, text)
        except OSError as error:
            raise ServiceError(f"{self.unit}: {error.strerror}{_as_root(self.scope)}") from None
        self._run("daemon-reload")
        self._run("enable", UNIT)
        if start:
            self._start()

    def _start(self) -> None:
        """Start it and wait until it serves; when it does not, say what it said. Raises ServiceError."""
        try:
            self._run("restart", UNIT)
        except ServiceError as error:
            found = self.state()
            why = found.get("StatusText") or _EXITS.get(found.get("ExecMainStatus", ""), str(error))
            raise ServiceError(f"the service is installed, but did not start: {why}") from None

    def uninstall(self) -> None:
        """Stop the service, so that it drains, and remove the unit. Raises ServiceError."""
        if not self.unit.exists():
            raise ServiceError(f"{self.unit} does not exist: the service is not installed for this {self.scope}")
        self._check_ours()
        self._run("disable", "--now", UNIT)
        try:
            self.unit.unlink()
        except OSError as error:
            raise ServiceError(f"{self.unit}: {error.strerror}{_as_root(self.scope)}") from None
        self._run("daemon-reload")

    def state(self) -> dict[str, str]:
        """Return the properties of the unit that systemd knows. Raises ServiceError."""
        answer = self._run("show", UNIT, f"--property={','.join(PROPERTIES)}")
        return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)

    def _check_ours(self) -> None:
        if self.unit.exists() and not self.unit.read_text(errors="replace").startswith(MARK):
            raise ServiceError(f"{self.unit} was not written by inferd; move it away, or change it with a drop-in")

    def _run(self, *arguments: str) -> str:
        program = shutil.which("systemctl")
        if program is None:
            raise ServiceError("systemctl is not installed: this machine does not run systemd; use `inferd serve`")
        scope = ("--user",) if self.scope == "user" else ()
        try:
            done = subprocess.run(
                [program, *scope, "--no-pager", *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise ServiceError(f"systemctl {' '.join(arguments)} did not end within {TIMEOUT_S:g} s") from None
        if done.returncode:
            raise ServiceError(f"systemctl {' '.join(arguments)}: {_reason(done.stderr, self.scope)}")
        return done.stdout


def _folder(scope: Scope, environment: Mapping[str, str] = os.environ) -> Path:
    if scope == "system":
        return SYSTEM_FOLDER
    config = environment.get("XDG_CONFIG_HOME", "")
    return (Path(config) if config.startswith("/") else Path.home() / ".config") / "systemd" / "user"


def _replace(path: Path, text: str) -> None:
    """Put a file in place in one rename; systemd wants it readable by all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _as_root(scope: Scope) -> str:
    return "; the service of the machine is root's: use sudo, or --user" if scope == "system" else ""


def _reason(stderr: str, scope: Scope) -> str:
    """Return what systemctl complained of in one line, with where to read on."""
    said = " ".join(stderr.split()) or "failed"
    user = "--user " if scope == "user" else ""
    return f"{said} (see: journalctl {user}-u {UNIT} -e)" if "journalctl" not in said else said
