"""The real daemon as a process: `inferd serve` with engines that compute, and what tests ask the system about it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import tomlkit

from inferd_client import NO_RETRY, Client, Timeouts
from inferd_client.protocol import ModelStatus, StatusReply

T = TypeVar("T")
WAIT_S = 60.0
"""Longest patience for what takes a moment on an idle machine: never a bound that is tested."""


class Served:
    """A running daemon."""

    def __init__(self, process: subprocess.Popen[bytes], runtime: Path, log: Path, folder: Path) -> None:
        self.process = process
        self.runtime = runtime
        self.log = log
        self.folder = folder
        self._clients: list[Client] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, name: str = "test", **options: Any) -> Client:
        """Return a client of its own session that sends nothing twice; closed with the daemon."""
        client = Client(
            self.runtime,
            name=name,
            timeouts=Timeouts(connect=WAIT_S, idle=WAIT_S, total=WAIT_S),
            **{"retry": NO_RETRY, "wait_for_daemon": True} | options,
        )
        self._clients.append(client)
        return client

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> dict[str, int]:
        """Return the processes of the daemon by their module; what these have forked is not counted."""
        found: dict[str, int] = {}
        for pid in descendants(self.pid):
            found.setdefault(module_of(pid), pid)
        return found

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def launch(folder: Path, model: str | Path | None, config: Mapping[str, Any], site: Path | None = None) -> Served:
    """Start `inferd serve` in `folder`; it may have run there before. `site` is put on its module path."""
    file, log, runtime = folder / "config.toml", folder / "log", folder / "run"
    file.write_text(tomlkit.dumps(_without_spare(config)))
    command = [sys.executable, "-m", "inferd.cli.main", "--runtime", str(runtime), "serve", "--config", str(file)]
    command += [str(model)] if model else []
    env = os.environ | ({"PYTHONPATH": str(site)} if site else {})
    with log.open("ab") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env)
    return Served(process, runtime, log, folder)


def _without_spare(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every engine process is a model's, unless a test wants a spare one."""
    return {**config, "daemon": {"spare_worker": "off", **config.get("daemon", {})}}


@contextmanager
def serving(model: str | Path | None, config: Mapping[str, Any] = {}, site: Path | None = None) -> Iterator[Served]:
    """Run a daemon in a short folder of its own; afterwards none of its processes may be left."""
    folder = Path(tempfile.mkdtemp(prefix="infd"))
    daemon = launch(folder, model, config, site)
    try:
        yield daemon
    finally:
        family = [daemon.pid, *descendants(daemon.pid)]
        daemon.close()
        eventually(lambda: not any(alive(pid) for pid in family))
        shutil.rmtree(folder)


def model_of(client: Client, name: str) -> ModelStatus | None:
    """Find a model by name or path."""
    return next((m for m in client.status().models if name in (m.name, m.path)), None)


def the_model(client: Client, name: str) -> ModelStatus:
    found = model_of(client, name)
    assert found is not None, f"{name} is not among the models"
    return found


def ready(client: Client, name: str) -> ModelStatus:
    """Load a model and return its state once it serves."""
    client.load(name)
    return the_model(client, name)


def all_free(client: Client, name: str) -> bool:
    """Nothing runs or waits, and no block is held."""
    model = the_model(client, name)
    return not (model.running or model.waiting) and model.kv_blocks_free == model.kv_blocks_total


def idle(client: Client, name: str) -> None:
    """Wait until everything of a model is free again."""
    eventually(lambda: all_free(client, name), lambda: client.status())


def eventually(check: Callable[[], T], explain: Callable[[], object] = lambda: "") -> T:
    """Return the first true value of `check`."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"it did not become true in {WAIT_S} s; {explain()}")


class Background(threading.Thread):
    """A call in a thread of its own; `result` waits for it and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        outcome = self.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def error(self) -> BaseException:
        """Return what the call raised; it must have failed."""
        outcome = self.outcome()
        assert isinstance(outcome, BaseException), f"it returned {outcome}"
        return outcome

    def outcome(self) -> Any:
        """Return what the call returned or raised."""
        self.join(2 * WAIT_S)
        assert not self.is_alive(), "the call never returned"
        return self._outcome if self._error is None else self._error


# --- processes --------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """Return the living children of a process and theirs."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return [child for child in found if alive(child)]


def module_of(pid: int) -> str:
    """Return what `python -m` runs in a process."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("-m") + 1] if "-m" in words else ""


def anonymous_bytes(pid: int) -> int:
    """Return the private memory of a process, swapped or not."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def counters(status: StatusReply, name: str) -> float:
    return status.counters.get(name, 0.0)
