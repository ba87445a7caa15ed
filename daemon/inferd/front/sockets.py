"""Bind the daemon's sockets so that nobody else can use them and no other daemon loses its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import zmq

from inferd.channel import private_files
from inferd.config.errors import ConfigError
from inferd.front.errors import EX_CONFIG, EX_TEMPFAIL, StartError
from inferd.front.zap import ADMIN_DOMAIN, USER_DOMAIN, Zap
from inferd.keys import AllowList, KeyStore
from inferd_client.endpoints import Endpoints

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.config.paths import RuntimePaths
    from inferd.config.schema import Daemon
    from inferd.keys import Pair

HWM = 256
"""Messages ZeroMQ may hold per peer and direction; past it the outbox of the client takes over."""
LINGER_MS = 1000
HANDSHAKE_MS = 5000
OLDEST_ZMQ = (4, 3, 3)
"""Earlier ones have remotely triggered memory faults."""
STALE = ("*.sock", "engine-*.json")


HEARTBEAT_MS = 5000
"""Between two signs of life on tcp, where a peer can vanish without a word."""


@dataclass(slots=True)
class Remote:
    """The same three sockets on tcp, under CURVE, and who is asked at each handshake."""

    data: zmq.Socket[bytes]
    control: zmq.Socket[bytes]
    events: zmq.Socket[bytes] | None
    """None while it is being bound anew."""
    zap: Zap
    allowed: AllowList
    bind_events: Callable[[], zmq.Socket[bytes]]
    """Raises ZMQError while the address is still in use."""


@dataclass(slots=True)
class Sockets:
    """The bound sockets and the lock that makes them ours."""

    context: zmq.Context[zmq.Socket[bytes]]
    data: zmq.Socket[bytes]
    control: zmq.Socket[bytes]
    events: zmq.Socket[bytes]
    lock: int
    remote: Remote | None = None

    @property
    def publishers(self) -> list[zmq.Socket[bytes]]:
        """The events sockets that are open."""
        remote = self.remote.events if self.remote is not None else None
        return [self.events] if remote is None else [self.events, remote]

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
    try:
        remote = _remote_plan(settings, paths) if settings.tcp else None
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
            sockets = Sockets(
                context=context,
                data=_bind(_socket(context, zmq.ROUTER, settings), f"ipc://{paths.data}"),
                control=_bind(_socket(context, zmq.ROUTER, settings), f"ipc://{paths.control}"),
                events=_bind(_socket(context, zmq.XPUB, settings), f"ipc://{paths.events}"),
                lock=lock,
            )
        if remote is not None:
            sockets.remote = _open_remote(context, settings, remote)
        return sockets
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        for path in (paths.data, paths.control, paths.events):
            path.unlink(missing_ok=True)
        os.close(lock)
        where = f"{paths.runtime} or on {settings.tcp}" if settings.tcp else f"{paths.runtime}"
        raise StartError(f"cannot bind in {where}: {error}", EX_CONFIG) from None


class _RemotePlan(NamedTuple):
    endpoints: Endpoints
    pair: Pair
    allowed: AllowList


def _remote_plan(settings: Daemon, paths: RuntimePaths) -> _RemotePlan:
    """Check all that tcp needs before anything is made. Raises ConfigError."""
    if not zmq.has("curve"):
        raise ConfigError(f"daemon.tcp = {settings.tcp}: this build of libzmq has no CURVE; install pyzmq from PyPI")
    try:
        endpoints = Endpoints.tcp(settings.tcp)
    except ValueError as error:
        raise ConfigError(f"daemon.tcp: {error}") from None
    store = KeyStore(paths.state)
    allowed = AllowList(store)
    if not allowed:
        why = allowed.problem or f"no client is allowed in {store.clients_file}"
        raise ConfigError(
            f"daemon.tcp = {settings.tcp} needs CURVE keys and an allow-list, but {why}; "
            "run: inferd keys new NAME --role user"
        )
    pair = store.server(make=True)
    assert pair is not None
    return _RemotePlan(endpoints, pair, allowed)


def _open_remote(context: zmq.Context[zmq.Socket[bytes]], settings: Daemon, plan: _RemotePlan) -> Remote:
    """Bind on tcp; libzmq asks `zap` from the first handshake on. Raises ZMQError."""
    zap = Zap(context, plan.allowed)

    def bound(kind: int, domain: bytes, endpoint: str) -> zmq.Socket[bytes]:
        socket = _socket(context, kind, settings)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, plan.pair.secret_key.encode())
        socket.set(zmq.ZAP_DOMAIN, domain)
        socket.set(zmq.IPV6, int("[" in endpoint))
        socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        return _bind(socket, endpoint)

    def bind_events() -> zmq.Socket[bytes]:
        return bound(zmq.XPUB, ADMIN_DOMAIN, plan.endpoints.events)

    return Remote(
        data=bound(zmq.ROUTER, USER_DOMAIN, plan.endpoints.data),
        control=bound(zmq.ROUTER, USER_DOMAIN, plan.endpoints.control),
        events=bind_events(),
        zap=zap,
        allowed=plan.allowed,
        bind_events=bind_events,
    )


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


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, settings: Daemon) -> zmq.Socket[bytes]:
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
    return socket


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> zmq.Socket[bytes]:
    try:
        socket.bind(endpoint)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket
