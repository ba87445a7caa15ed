"""The folders and sockets of the daemon, by XDG for a user and by systemd's variables for a service."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from inferd.config.errors import ConfigError
from inferd.config.schema import Config
from inferd_client.endpoints import (
    CONTROL_SOCKET,
    DATA_SOCKET,
    EVENTS_SOCKET,
    LOCK_FILE,
    default_runtime_dir,
    socket_path,
)

RANK_SOCKET = "r4194304/99"
"""The longest socket between our own processes: rank 99 of a worker with the highest process id of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePaths:
    """Where this daemon keeps what it keeps."""

    runtime: Path
    """Sockets and lock; 0700."""
    models: Path
    cache: Path
    state: Path

    @property
    def data(self) -> Path:
        return self.runtime / DATA_SOCKET

    @property
    def control(self) -> Path:
        return self.runtime / CONTROL_SOCKET

    @property
    def events(self) -> Path:
        return self.runtime / EVENTS_SOCKET

    @property
    def lock(self) -> Path:
        return self.runtime / LOCK_FILE

    @classmethod
    def of(cls, config: Config) -> RuntimePaths:
        """Resolve every folder: the config's own, else systemd's, else XDG's. Nothing is created.

        Raises ConfigError when a socket path would be too long for the system.
        """
        named = config.paths
        service = _service("STATE_DIRECTORY")
        data = service or _xdg("XDG_DATA_HOME", ".local/share")
        paths = cls(
            runtime=_named(named.runtime) or _service("RUNTIME_DIRECTORY") or default_runtime_dir(),
            models=_named(named.models) or data / "models",
            cache=_named(named.cache) or _service("CACHE_DIRECTORY") or _xdg("XDG_CACHE_HOME", ".cache"),
            state=_named(named.state) or service or _xdg("XDG_STATE_HOME", ".local/state"),
        )
        paths.check_lengths()
        return paths

    def check_lengths(self) -> None:
        """Raise ConfigError when a socket path exceeds what the kernel takes: ours, or one between our processes."""
        try:
            for name in (DATA_SOCKET, CONTROL_SOCKET, EVENTS_SOCKET, RANK_SOCKET):
                socket_path(self.runtime, name)
        except ValueError as error:
            raise ConfigError(f"paths.runtime: {error}") from None

    def make_runtime(self) -> None:
        """Create the runtime folder with mode 0700. Raises ConfigError when it is not safely ours."""
        self.check_lengths()
        make_private(self.runtime)


def make_private(folder: Path) -> None:
    """Create a folder of mode 0700, or check an existing one. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {_blame(folder, error)}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is not a folder; remove it or set another paths.runtime")
    if found.st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to user {found.st_uid}, not to {os.getuid()}; set another paths.runtime")
    if found.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to others (mode {found.st_mode & 0o777:o}); run: chmod 700 {folder}")


def _blame(folder: Path, error: OSError) -> str:
    """Name the part of a path that is missing or denies us."""
    for part in reversed(folder.parents):
        if not part.exists():
            return f"{part} does not exist"
        if not os.access(part, os.X_OK):
            return f"{part} denies access"
    if not os.access(folder.parent, os.W_OK):
        return f"{folder.parent} is not writable"
    return error.strerror or str(error)


def _named(folder: str) -> Path | None:
    return Path(folder).expanduser().absolute() if folder else None


def _service(variable: str) -> Path | None:
    """First of the colon-separated folders systemd made for the service."""
    folders = os.environ.get(variable, "")
    return Path(folders.split(":")[0]) if folders else None


def _xdg(variable: str, fallback: str) -> Path:
    """XDG base directory specification: a relative value is ignored."""
    value = os.environ.get(variable, "")
    return (Path(value) if value.startswith("/") else Path.home() / fallback) / "inferd"
