"""What `Client` and `AsyncClient` have in common: endpoints, settings, the driver's life."""

from __future__ import annotations

import dataclasses
import os
import weakref

from . import protocol as p
from .call import Call, Sink
from .calls import Planned
from .driver import Driver
from .endpoints import Endpoints, default_runtime_dir
from .errors import ClientClosed
from .key_file import KeyFile
from .options import RetryPolicy, Timeouts
from .sockets import Curve


class ClientBase:
    """Talks to one daemon. Opens its connection with the first call; safe to make before a fork."""

    def __init__(
        self,
        runtime: str | os.PathLike[str] | None = None,
        *,
        endpoints: Endpoints | None = None,
        name: str = "",
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        wait_for_daemon: bool = False,
        curve: Curve | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Settle where the daemon is; nothing is sent yet.

        `runtime` is the daemon's runtime directory (default: see `default_runtime_dir`), `endpoints` names the
        sockets instead (on tcp together with the keys in `curve`), and `key_file` is the file of `inferd keys new`,
        which has both. `name` shows in the daemon's request list. With `wait_for_daemon` a daemon that is not
        running is waited for until the connect time-out; without it the first call fails at once.
        Raises ValueError when the runtime path is too long for a socket, and when a key file is not one or can be
        read by others.
        """
        if key_file is not None:
            if runtime is not None or endpoints is not None or curve is not None:
                raise ValueError("key_file says where the daemon is: leave out runtime, endpoints and curve")
            loaded = KeyFile.load(key_file)
            endpoints, curve = loaded.endpoints, loaded.curve
        self.endpoints = endpoints or Endpoints.in_dir(default_runtime_dir() if runtime is None else runtime)
        self.timeouts = timeouts or Timeouts()
        self.retry = retry or RetryPolicy()
        self._name = (name or f"python-{os.getpid()}").encode(errors="replace").decode()
        self._wait_for_daemon = wait_for_daemon
        self._curve = curve
        self._closed = False
        self._drivers: dict[int, Driver] = {}
        """By process: a fork inherits its parent's driver, must leave it alone, and makes its own."""

    @property
    def daemon(self) -> p.Welcome | None:
        """What the daemon said of itself (version, instance, limits, our role); None before the first call."""
        driver = self._drivers.get(os.getpid())
        return None if driver is None else driver.welcome

    def _open(self) -> Driver:
        """Return this process's driver, made on first use. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed("the client is closed")
        pid = os.getpid()
        driver = self._drivers.get(pid)
        if driver is None:
            new = Driver(self.endpoints, self._name, curve=self._curve, wait=self._wait_for_daemon)
            driver = self._drivers.setdefault(pid, new)  # atomic: another thread may have been first
            if driver is new:
                weakref.finalize(self, driver.close)
        driver.start()
        return driver

    @property
    def _patient(self) -> Timeouts:
        """For calls that may be answered late; heartbeats tell a dead daemon."""
        return dataclasses.replace(self.timeouts, idle=None)

    def new_call(self, planned: Planned, sink: Sink) -> Call:
        """Return a call with this client's settings where the plan names none."""
        return Call(planned.message, sink, planned.timeouts or self.timeouts, planned.retry or self.retry)

    def _close(self) -> None:
        self._closed = True
        for driver in self._drivers.values():
            driver.close()
