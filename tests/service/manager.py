"""A service manager of a few lines: it runs a unit file of ours as systemd would, where that takes no privileges.

Folders, environment, umask, readiness, watchdog and stop are real (systemd.exec(5), sd_notify(3)); the sandbox is left
to `systemd-analyze` and to a machine that runs systemd.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from inferd.service.unit import Scope, render

WAIT_S = 60.0
FOLDERS = {"Runtime": "run", "State": "lib", "Cache": "cache", "Configuration": "etc"}
"""Kinds of folders of a service, and what stands for /run, /var/lib, /var/cache and /etc."""
SPECIFIERS = {"%t": "run", "%S": "lib", "%C": "cache"}


class Service:
    """A unit under `root`; `command` takes the place of the one it is installed with."""

    def __init__(self, scope: Scope, root: Path, command: list[str], *, watchdog_s: float | None = None) -> None:
        self.root = root
        self.unit = options(render(scope, command))
        self.told: list[str] = []
        self._log = root / "log"
        self._address = root / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._address))
        self._watchdog_s = watchdog_s or float(self.unit["WatchdogSec"][0])
        self.process = self._start()

    def folder(self, kind: str) -> Path:
        return self.root / FOLDERS[kind] / self.unit[f"{kind}Directory"][0]

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def hear(self, text: str) -> str:
        """Wait until the daemon tells `text`; return what it told with it."""
        end = time.monotonic() + WAIT_S
        while not (found := [line for line in self.told if text in line]):
            assert time.monotonic() < end, (self.told, self.log)
            assert self.process.poll() is None, (self.process.returncode, self.told, self.log)
            self._listen(0.2)
        return found[0]

    def stop(self) -> int:
        """End it as KillMode=mixed does; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(WAIT_S)
        self._listen(0.0)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._socket.close()

    def _start(self) -> subprocess.Popen[bytes]:
        (words,) = self.unit["ExecStart"]
        program = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", *shlex.split(words.replace("%%", "%"))]
        privileges = ["setpriv", "--no-new-privs"] if shutil.which("setpriv") else []
        with self._log.open("ab") as sink:
            return subprocess.Popen(
                [*privileges, *program],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd="/",
                env=self._environment(),
                umask=int(self.unit["UMask"][0], 8),
            )

    def _environment(self) -> dict[str, str]:
        """Nothing of ours but what systemd gives."""
        found = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.root / "home"),
            "NOTIFY_SOCKET": str(self._address),
            "WATCHDOG_USEC": str(round(1e6 * self._watchdog_s)),
        }
        for kind in FOLDERS:
            if f"{kind}Directory" in self.unit:
                found[f"{kind.upper()}_DIRECTORY"] = str(self._make(kind))
        for line in self.unit.get("Environment", []):
            found |= dict(self._expand(word).split("=", 1) for word in shlex.split(line))
        return found

    def _make(self, kind: str) -> Path:
        folder = self.folder(kind)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(int(self.unit.get(f"{kind}DirectoryMode", ["0755"])[0], 8))
        return folder

    def _expand(self, word: str) -> str:
        for mark, name in SPECIFIERS.items():
            word = word.replace(mark, str(self.root / name))
        return word

    def _listen(self, patience_s: float) -> None:
        """Take what was told meanwhile."""
        self._socket.settimeout(patience_s)
        try:
            while True:
                self.told.append(self._socket.recv(4096).decode())
        except (TimeoutError, BlockingIOError):
            return


def options(text: str) -> dict[str, list[str]]:
    """Return the settings of a unit file, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if re.match(r"[A-Za-z]+=", line):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def is_ours_alone(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0 and path.stat().st_uid == os.getuid()
