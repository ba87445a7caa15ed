"""The key file of a client on tcp: where the daemon is, its public key, and the client's own pair.

`inferd keys new NAME` writes one. It is TOML with the strings `server` (tcp://HOST:PORT), `server_key`,
`public_key` and `secret_key`; keys are the Z85 text of 32 bytes.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .endpoints import Endpoints
from .sockets import Curve

FIELDS = ("server", "server_key", "public_key", "secret_key")
KEY_CHARS = 40


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What a key file says."""

    endpoints: Endpoints
    curve: Curve

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyFile:
        """Read a key file. Raises ValueError when it is not one, or when others can read it."""
        file = Path(path).expanduser()
        try:
            _check_private(file)
            values = tomllib.loads(file.read_text())
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is not a key file: {error}") from None
        missing = [name for name in FIELDS if not isinstance(values.get(name), str)]
        if missing:
            raise ValueError(f"{file} is not a key file: it lacks {', '.join(missing)}")
        for name in FIELDS[1:]:
            if len(values[name]) != KEY_CHARS or not values[name].isascii():
                raise ValueError(f"{file}: {name} is not a key of {KEY_CHARS} characters")
        try:
            endpoints = Endpoints.tcp(values["server"])
        except ValueError as error:
            raise ValueError(f"{file}: server: {error}") from None
        keys = {name: values[name].encode() for name in FIELDS[1:]}
        return cls(endpoints, Curve(**keys))


def _check_private(file: Path) -> None:
    found = file.stat()
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"{file} is open to others (mode {stat.S_IMODE(found.st_mode):o}); run: chmod 600 {file}")
