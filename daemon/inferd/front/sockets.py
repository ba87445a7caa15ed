"""Bind the daemon's sockets so that nobody else can use them and no other daemon loses its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from inferd.channel import private_files
from inferd.config.errors import ConfigError
from inferd.front.errors import EX_CONFIG, EX_TEMPFAIL, StartError

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.config.paths import RuntimePaths
    from inferd.config.schema import Daemon

HWM = 256
"""Messages ZeroMQ may hold per peer and direction; past it the outbox of the client takes over."""
LINGER_MS = 1000
HANDSHAKE_MS = 5000
OLDEST_ZMQ = (4, 3, 3)
"""Earlier ones have remotely triggered memory faults."""
STALE = ("*.sock", "engine-*.json")


@dataclass(slots=True)
class Sockets:
    """The bound sockets and the lock that makes them ours."""

    context: zmq.Context[zmq.Socket[bytes]]
    data: zmq.Socket[bytes]
    control: zmq.Socket[bytes]
    events: zmq.Socket[bytes]
    lock: int

    def close(self, paths: RuntimePaths) -> None:
        """Let queued answers leave for a moment, then remove the paths and give up the lock."""
        self.context.destroy(linger=LINGER_MS)
        for path in (paths.data, paths.control, paths.events):
            path.unlink(missing_ok=True)
        os.ftruncate(self.lock, 0)
        os.close(self.lock)


def open_sockets(settings: Daemon, paths: RuntimePaths) -> Sockets:
    """Check the folder, take the lock, clean what a dead daemon left, bind. Raises StartError."""
    if zmq.zmq_version_info() < OLDEST_ZMQ:
        raise StartError(f"libzmq {zmq.zmq_version()} is too old: install pyzmq >= 26.2", EX_CONFIG)
    if settings.tcp:
        raise StartError(
            f"daemon.tcp = {settings.tcp}: tcp needs CURVE and an allow-list of client keys, "
            "which this version does not have; remove the setting",
            EX_CONFIG,
        )
    try:
        paths.make_runtime()
    except ConfigError as error:
        raise StartError(str(error), EX_CONFIG) from None
    lock = take_lock(paths.lock)
    for pattern in STALE:
        for path in paths.runtime.glob(pattern):
            path.unlink(missing_ok=True)
    remove_rank_folders(paths.runtime)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with private_files():
            return Sockets(
                context=context,
                data=_bind(context, zmq.ROUTER, paths.data, settings),
                control=_bind(context, zmq.ROUTER, paths.control, settings),
                events=_bind(context, zmq.XPUB, paths.events, settings),
                lock=lock,
            )
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        os.close(lock)
        raise StartError(f"cannot bind in {paths.runtime}: {error}", EX_CONFIG) from None


def take_lock(path: Path) -> int:
    """Return a descriptor that holds the lock of this runtime folder. Raises StartError naming the holder."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"cannot open {path}: {error.strerror}", EX_CONFIG) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StartError(
            f"inferd already runs in {path.parent} (pid {holder or 'unknown'}); stop it: inferd stop", EX_TEMPFAIL
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def remove_rank_folders(runtime: Path, pid: int | None = None) -> None:
    """Remove what a worker that was killed, or all of a daemon that was, left of its ranks' sockets."""
    for folder in runtime.glob("r[0-9]*" if pid is None else f"r{pid}"):
        shutil.rmtree(folder, ignore_errors=True)


def _bind(context: zmq.Context[zmq.Socket[bytes]], kind: int, path: Path, settings: Daemon) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set(zmq.SNDHWM, HWM)
    socket.set(zmq.RCVHWM, HWM)
    socket.set(zmq.LINGER, LINGER_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if kind == zmq.ROUTER:
        socket.set(zmq.MAXMSGSIZE, settings.max_frame)
        socket.set(zmq.ROUTER_MANDATORY, 1)  # a send to a gone client fails, which is how it is noticed
    else:
        socket.set(zmq.MAXMSGSIZE, 1024)  # subscriptions only
        socket.set(zmq.XPUB_VERBOSE, 1)  # every new subscriber is told the present state
    socket.bind(f"ipc://{path}")
    return socket
