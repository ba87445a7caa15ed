"""Where the daemon's sockets are: one rule, shared by clients and the daemon."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

DATA_SOCKET = "data.sock"
CONTROL_SOCKET = "control.sock"
EVENTS_SOCKET = "events.sock"
LOCK_FILE = "inferd.lock"

SYSTEM_RUNTIME = Path("/run/inferd")
MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket path on Linux (sun_path without its final NUL)."""
MAX_PORT = 65535
_TCP = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The three ZeroMQ endpoints of one daemon."""

    data: str
    control: str
    events: str

    @classmethod
    def in_dir(cls, runtime: str | os.PathLike[str]) -> Endpoints:
        """Return the ipc endpoints of a runtime directory. Raises ValueError for a path too long to bind."""
        base = Path(runtime).expanduser().absolute()
        return cls(*(f"ipc://{socket_path(base, name)}" for name in (DATA_SOCKET, CONTROL_SOCKET, EVENTS_SOCKET)))

    @classmethod
    def tcp(cls, address: str) -> Endpoints:
        """Return the endpoints of a daemon on tcp: data at the port of `tcp://HOST:PORT`, control and events after it.

        Raises ValueError for anything else.
        """
        found = _TCP.fullmatch(address)
        if found is None or not 0 < int(found["port"]) <= MAX_PORT - 2:
            raise ValueError(f"{address!r} is not tcp://HOST:PORT with a port of 1 to {MAX_PORT - 2}")
        return cls(*(f"tcp://{found['host']}:{int(found['port']) + i}" for i in range(3)))

    @property
    def runtime(self) -> Path | None:
        """The runtime directory; None for endpoints that are not ipc."""
        return Path(self.data.removeprefix("ipc://")).parent if self.data.startswith("ipc://") else None


def socket_path(runtime: Path, name: str) -> Path:
    """Return the path of a socket in `runtime`. Raises ValueError when it is too long for a Unix socket."""
    path = runtime / name
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise ValueError(
            f"socket path of {size} bytes exceeds {MAX_SOCKET_PATH}: {path} (choose a shorter runtime directory)"
        )
    return path


def default_runtime_dir() -> Path:
    """Return the runtime directory of the daemon this user would talk to, without making it.

    `$XDG_RUNTIME_DIR/inferd` when that variable names a directory of ours with mode 0700; else
    `/run/inferd` when it exists and is ours (a system service); else `/tmp/inferd-UID`.
    """
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if xdg and os.path.isabs(xdg) and is_private_dir(Path(xdg)):
        return Path(xdg) / "inferd"
    if is_private_dir(SYSTEM_RUNTIME):
        return SYSTEM_RUNTIME
    return Path("/tmp") / f"inferd-{os.getuid()}"


def is_private_dir(path: Path) -> bool:
    """Whether `path` is a real directory that belongs to us with no rights for anyone else."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and stat.S_IMODE(info.st_mode) & 0o077 == 0


def ensure_private_dir(path: Path) -> Path:
    """Make `path` with mode 0700 if it is absent. Raises PermissionError when someone else can reach into it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private_dir(path):
        raise PermissionError(f"{path} must be a directory of user {os.getuid()} with mode 0700")
    return path
