"""Who else could read or change a file that the daemon trusts; each refusal names the remedy."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from inferd.config.errors import ConfigError


def check_config_files(files: Iterable[Path]) -> None:
    """Raise ConfigError when a user other than us and root could change one of the config files."""
    for path in files:
        found = _stat(path)
        if found.st_uid not in (os.getuid(), 0):
            raise ConfigError(
                f"{path} belongs to user {found.st_uid}, who could change it; run: chown {os.getuid()} {path}"
            )
        if found.st_mode & stat.S_IWOTH and stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} can be changed by everybody (mode {_mode(found)}); run: chmod o-w {path}")
        folder = path.resolve().parent
        above = _stat(folder)
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            raise ConfigError(
                f"{folder}, which holds {path.name}, can be changed by everybody; run: chmod o-w {folder}"
            )


def check_secret(path: Path) -> None:
    """Raise ConfigError when a file with a secret belongs to somebody else or others can read it."""
    found = _stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a plain file")
    if found.st_uid not in (os.getuid(), 0):
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, not to {os.getuid()}; run: chown {os.getuid()} {path}"
        )
    if found.st_mode & 0o077:
        raise ConfigError(f"{path} is open to others (mode {_mode(found)}); run: chmod 600 {path}")


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):o}"
