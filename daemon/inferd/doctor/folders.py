"""Config files, the daemon's folders, its sockets' paths, the keys of tcp."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.config.errors import ConfigError
from inferd.config.permissions import check_config_files
from inferd.doctor.finding import GIB, Finding, failure, gib, ok, warning
from inferd.keys import KeyStore

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

LOW_DISK = 2 * GIB
BIG_CACHE = 50 * GIB
MAX_FILES = 100_000


def check_config(what: Examined) -> Iterator[Finding]:
    try:
        check_config_files(what.files)
    except ConfigError as error:
        yield _of(error, "config")
    else:
        yield ok("config", f"files in use: {', '.join(map(str, what.files)) or 'none, the defaults hold'}")


def check(what: Examined) -> Iterator[Finding]:
    yield from _check_runtime(what)
    for name in ("models", "cache", "state"):
        yield _check_writable(name, getattr(what.paths, name))
    yield from _check_disk(what.paths.models)
    yield from _check_caches(what)
    if what.config.daemon.tcp:
        yield _check_keys(what)


def _check_runtime(what: Examined) -> Iterator[Finding]:
    runtime = what.paths.runtime
    try:
        what.paths.check_lengths()
        if runtime.exists():
            what.paths.make_runtime()  # checks one that is there
            yield ok("sockets", f"{runtime} is ours alone")
        else:
            yield _check_writable("sockets", runtime)
    except ConfigError as error:
        yield _of(error, "sockets")


def _check_writable(topic: str, folder: Path) -> Finding:
    """Judge whether files can be made in a folder, or the folder itself, without making any."""
    there = next(part for part in (folder, *folder.parents) if part.exists())
    if not there.is_dir():
        return failure(topic, f"{there} is no folder", f"remove it, or set paths.{topic}")
    if not os.access(there, os.W_OK | os.X_OK):
        owner = there.stat().st_uid
        remedy = f"run: chmod u+rwx {there}" if owner == os.getuid() else f"set paths.{topic} to a folder of yours"
        return failure(topic, f"{there} cannot be written to (it belongs to user {owner})", remedy)
    return ok(topic, f"{folder}{'' if there == folder else ' (made when it is needed)'}")


def _check_disk(folder: Path) -> Iterator[Finding]:
    there = next(part for part in (folder, *folder.parents) if part.exists())
    free = shutil.disk_usage(there).free
    if free < LOW_DISK:
        yield warning("models", f"{gib(free)} are free on the disk of {there}", "make room, or set paths.models")
    else:
        yield ok("models", f"{gib(free)} are free on their disk")


def _check_caches(what: Examined) -> Iterator[Finding]:
    """Say what the caches take: repacked weights and measurements of ours, kernels that Triton compiled."""
    triton = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    for topic, folder in (("cache", what.paths.cache), ("cache", triton)):
        size = size_of(folder)
        if size > BIG_CACHE:
            yield warning(topic, f"{folder} holds {gib(size)}", f"it may be deleted at any time: rm -r {folder}")
        elif size:
            yield ok(topic, f"{folder} holds {gib(size)}")


def size_of(folder: Path) -> int:
    """Add up the files under a folder; of a huge one, the first hundred thousand."""
    total = 0
    for path in islice(folder.rglob("*"), MAX_FILES):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def _check_keys(what: Examined) -> Finding:
    try:
        clients = KeyStore(what.paths.state).clients()
    except ConfigError as error:
        return _of(error, "keys")
    if not clients:
        return failure(
            "keys", f"daemon.tcp = {what.config.daemon.tcp}, but no client is allowed", "inferd keys new NAME"
        )
    return ok("keys", f"{len(clients)} clients are allowed on {what.config.daemon.tcp}")


def _of(error: ConfigError, topic: str) -> Finding:
    """Split a message `what; run: remedy`."""
    text, _, remedy = str(error).partition("; ")
    return failure(topic, text, remedy or "inferd config show --origin")
