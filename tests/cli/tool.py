"""Run the `inferd` command as a user does: another process, its output and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "inferd.cli.main")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Tool:
    """The command with folders of its own."""

    home: Path
    runtime: Path

    @property
    def env(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "INFERD_", "_INFERD"))}
        return keep | {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_STATE_HOME": str(self.home / "state"),
        }

    @property
    def user_file(self) -> Path:
        return self.home / "config" / "inferd" / "config.toml"

    def __call__(self, *arguments: str, stdin: str = "", env: Mapping[str, str] = {}, timeout: float = 60) -> Ran:
        done = subprocess.run(
            [*COMMAND, "--runtime", str(self.runtime), *arguments],
            input=stdin.encode(),
            capture_output=True,
            env=self.env | dict(env),
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
