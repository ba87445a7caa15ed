"""The bearer token: made once, kept in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

MIN_CHARS = 16
MAX_BYTES = 4096


def read_or_make(path: Path) -> tuple[str, bool]:
    """Return the token in `path`, and whether it was made just now.

    Raises ValueError for a file that others can read or that holds no sound token, OSError where there is no access.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = secrets.token_urlsafe(32)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return _read(path), False
    with os.fdopen(handle, "w") as file:
        file.write(token + "\n")
    return token, True


def _read(path: Path) -> str:
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (os.getuid(), 0):
            raise ValueError(f"{path} must be a file of user {os.getuid()}")
        if info.st_mode & 0o077:
            raise ValueError(f"{path} can be read by others (mode {info.st_mode & 0o777:o}); run: chmod 600 {path}")
        token = file.read(MAX_BYTES).decode("ascii", "replace").strip()
    if len(token) < MIN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"{path} holds no token: {MIN_CHARS} or more printable ASCII characters; remove it for a new one"
        )
    return token
