"""CURVE keys of the daemon and the allow-list of its clients, in the folder `keys` of the state folder.

`server.toml` holds the daemon's pair, `clients.toml` the public key and role of each client. Both are 0600.
Keys are Z85 text, as ZeroMQ writes them (https://rfc.zeromq.org/spec/32/).
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import zmq
from zmq.utils import z85

from inferd.config.errors import ConfigError
from inferd.config.paths import make_private
from inferd.config.permissions import check_secret

T = TypeVar("T")
Role = Literal["user", "admin"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public key and its secret, as Z85 text."""

    public_key: str
    secret_key: str

    @classmethod
    def new(cls) -> Pair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


class AllowedClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the allow-list."""

    public_key: str
    role: Role


class _ClientsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    clients: dict[str, AllowedClient] = {}


class Known(NamedTuple):
    """Whose key it is and what it may do."""

    name: str
    role: Role


class KeyStore:
    """The files of one daemon. Everything raises ConfigError with the remedy."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "keys"
        self._server = self.folder / "server.toml"
        self.clients_file = self.folder / "clients.toml"

    def server(self, *, make: bool = False) -> Pair | None:
        """Return the daemon's pair; with `make` it is made when there is none yet."""
        if self._server.exists():
            pair = _read(self._server, Pair)
            check_key(pair.public_key)
            check_key(pair.secret_key)
            return pair
        if not make:
            return None
        pair = Pair.new()
        self._write(self._server, _lines({"public_key": pair.public_key, "secret_key": pair.secret_key}))
        return pair

    def clients(self) -> dict[str, AllowedClient]:
        """Return the allow-list by name."""
        if not self.clients_file.exists():
            return {}
        clients = _read(self.clients_file, _ClientsFile).clients
        for client in clients.values():
            check_key(client.public_key)
        return clients

    def allow(self, name: str, public_key: str, role: Role) -> None:
        """Let the holder of a key in, or change what an allowed one may do."""
        check_name(name)
        check_key(public_key)
        clients = self.clients()
        twin = next((n for n, c in clients.items() if c.public_key == public_key and n != name), None)
        if twin is not None:
            raise ConfigError(f"this key is already allowed, as {twin}; run: inferd keys revoke {twin}")
        self._save(clients | {name: AllowedClient(public_key, role)})

    def revoke(self, name: str) -> None:
        """Take a client off the list; a running daemon drops it within moments."""
        clients = self.clients()
        if clients.pop(name, None) is None:
            raise ConfigError(f"no client named {name!r} is allowed; `inferd keys list` shows them")
        self._save(clients)

    def _save(self, clients: Mapping[str, AllowedClient]) -> None:
        tables = [
            f"[clients.{name}]\n{_lines({'public_key': c.public_key, 'role': c.role})}" for name, c in clients.items()
        ]
        self._write(self.clients_file, "\n".join(tables))

    def _write(self, path: Path, text: str) -> None:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {self.folder.parent}: {error.strerror}") from None
        if os.geteuid() != 0 or not self.folder.exists():
            make_private(self.folder)
        write_secret(path, text)


def write_secret(path: Path, text: str) -> None:
    """Put a 0600 file in place in one rename; root leaves it to the owner of the folder. Raises ConfigError."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.chown(temporary, owner.st_uid, owner.st_gid)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name for a client: letters, digits, dashes and underscores")


def check_key(key: str) -> None:
    """Raise ConfigError unless `key` is the Z85 text of 32 bytes."""
    try:
        good = len(key) == 40 and len(z85.decode(key.encode())) == 32
    except (ValueError, KeyError, UnicodeEncodeError):
        good = False
    if not good:
        raise ConfigError("a key has 40 characters of Z85 text; `inferd keys new` makes one")


class AllowList:
    """The clients a running daemon lets in; changes of the file count at once, a broken file lets nobody in."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Known] = {}
        self.problem = ""
        self.revision = 0
        """Counts the changes that took something away from a client."""

    def find(self, public_key: str) -> Known | None:
        """Return who holds the key (Z85); None = not allowed."""
        self.refresh()
        return self._known.get(public_key)

    def __len__(self) -> int:
        self.refresh()
        return len(self._known)

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        try:
            found = self._store.clients_file.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp and stamp is not None:
            return
        before = self._known
        self._stamp, self._known, self.problem = stamp, {}, ""
        try:
            self._known = {c.public_key: Known(name, c.role) for name, c in self._store.clients().items()}
        except ConfigError as error:
            self.problem = str(error)
        if any(self._known.get(key) != known for key, known in before.items()):
            self.revision += 1


def _read(path: Path, kind: type[T]) -> T:
    check_secret(path)
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), kind)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f'{name} = "{value}"\n' for name, value in values.items())
