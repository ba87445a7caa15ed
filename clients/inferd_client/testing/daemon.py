"""Start, steer and stop a fake daemon."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ..aio import AsyncClient
    from ..client import Client

START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0
DRAIN_S = 1.0
"""For requests that still run when the daemon is stopped or restarted, unless `config` says otherwise."""
LOG_CHARS = 4000
"""Of the log's end, added to an exception that leaves a `with` block."""


class FakeDaemonError(RuntimeError):
    """The fake daemon did not start, or did not do what it was told in time; the message has its log."""


class FakeDaemon:
    """The real front of inferd over an engine that follows a script; use as a context manager.

    `script` says what it answers and how it fails:

        reply            text of every answer; absent: the prompt is said back
        answers          [{"match": TEXT, "reply": TEXT}, ...]: other answers to prompts that contain TEXT; of several
                         that match, the last
        delay_s          seconds a token takes
        models           names it offers; the first is the default
        context          tokens of prompt and answer in all
        max_sequences    requests that run at once; more wait
        chunk            prompt tokens a step
        load_s           seconds a model takes to load
        die_at_load      the first so many starts of the engine die
        fail_at_load     the first so many starts report a load error
        faults           [{"match": TEXT, "kind": KIND, "after": N, "seconds": S}, ...]: what befalls requests whose
                         prompt contains TEXT: die, segv (after N tokens), hang, nan, silent, slow_prefill, huge

    `config` has settings as in config.toml, e.g. {"daemon": {"max_queue": 2}}.
    """

    def __init__(self, script: Mapping[str, Any] | None = None, *, config: Mapping[str, Any] | None = None) -> None:
        self._script = dict(script or {})
        self._config = {**(config or {}), "daemon": {"drain_s": DRAIN_S, **(config or {}).get("daemon", {})}}
        self._folder = Path(tempfile.mkdtemp(prefix="inferd-fake-"))
        self.runtime = self._folder / "run"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []

    # life

    def start(self) -> Self:
        """Start the daemon and return when clients can connect. Raises FakeDaemonError."""
        if self.pid is not None:
            return self
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "inferd_client.testing.child", "inferd.front.fake", *self._arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )
        self._await_ready(self._process)
        return self

    def stop(self) -> None:
        """End the daemon and remove its files. Idempotent."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End the daemon with SIGKILL, as a crash would; `start` brings another instance."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the daemon in good order and start another instance in the same place."""
        self._end(signal.SIGTERM)
        self.start()

    def script(self, **changes: Any) -> None:
        """Change the script, which restarts the daemon; None removes an entry."""
        self._script = {name: value for name, value in {**self._script, **changes}.items() if value is not None}
        self.restart()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(f"log of the fake daemon:\n{self.log[-LOG_CHARS:]}")
        self.stop()

    # use

    def client(self, **options: Any) -> Client:
        """Return a new Client of this daemon; `stop` closes it. Options are those of Client."""
        client = self._new_client(**options)
        self._clients.append(client)
        return client

    def async_client(self, **options: Any) -> AsyncClient:
        """Return a new AsyncClient of this daemon; close it yourself."""
        from ..aio import AsyncClient

        return AsyncClient(self.runtime, **options)

    @property
    def pid(self) -> int | None:
        """Process id of the daemon; None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log(self) -> str:
        """What the daemon has logged, over all its instances."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def wait_ready(self, model: str | None = None, timeout: float = START_TIMEOUT) -> None:
        """Wait until a model (the default one) is ready to generate. Raises FakeDaemonError."""
        self._await_worker(model, lambda pid: pid is not None, timeout)

    def kill_worker(self, model: str | None = None, *, with_signal: int = signal.SIGKILL) -> int:
        """Kill the engine of a model (the default one) as a crash would; return the process id it had.

        Waits for an engine to kill, and for the daemon to have noticed. Raises FakeDaemonError.
        """
        victim = self._await_worker(model, lambda pid: pid is not None, START_TIMEOUT)
        assert victim is not None
        os.kill(victim, with_signal)
        self._await_worker(model, lambda pid: pid != victim, START_TIMEOUT)
        return victim

    # inside

    def _new_client(self, **options: Any) -> Client:
        from ..client import Client

        return Client(self.runtime, **options)

    def _arguments(self) -> list[str]:
        script, config = json.dumps(self._script), json.dumps(self._config)
        state = str(self._folder / "state")
        return ["--runtime", str(self.runtime), "--state", state, "--script", script, "--config", config]

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        timer = threading.Timer(START_TIMEOUT, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line.startswith(b"ready"):
            self._end(signal.SIGKILL)
            raise FakeDaemonError(f"the fake daemon did not start:\n{self.log}")

    def _await_worker(self, model: str | None, wanted: Callable[[int | None], bool], timeout: float) -> int | None:
        """Wait for a state of an engine; return its process id, None while it is not ready."""
        end = time.monotonic() + timeout
        with self._new_client() as client:
            while True:
                status = client.status()
                name = model or status.default_model
                pid = next((m.pid for m in status.models if m.name == name and m.state == "ready"), None)
                if wanted(pid):
                    return pid
                if time.monotonic() > end:
                    states = ", ".join(f"{m.name}: {m.state}" for m in status.models) or "no model"
                    raise FakeDaemonError(f"{name} is not as wanted after {timeout:g} s ({states}):\n{self.log}")
                time.sleep(0.01)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
