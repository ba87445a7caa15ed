"""The real front with scripted engines as a process, and a raw client of few lines, for the tests here."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from inferd_client import protocol as p

WAIT_S = 60.0
"""For what must come: long, as a machine may be busy or pause; it costs nothing where all is well."""


class Daemon:
    """A running `inferd.front.fake`."""

    def __init__(self, runtime: Path, process: subprocess.Popen[str], log: Path) -> None:
        self.runtime = runtime
        self.process = process
        self.log = log
        self.clients: list[Raw] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, name: str = "test", **options: Any) -> Raw:
        client = Raw(self.runtime, name, **options)
        self.clients.append(client)
        return client

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        return self.process.wait(timeout_s)

    def logged(self) -> str:
        return self.log.read_text()


def launch(runtime: Path, *, env: dict[str, str] | None = None, config: Any = None, **script: Any) -> Daemon:
    """Start the fake daemon and wait until it is ready; `config` are settings, the rest is the script."""
    runtime.mkdir(mode=0o700, exist_ok=True)
    log = runtime.parent / f"{runtime.name}.log"
    state = runtime.parent / f"{runtime.name}-state"
    arguments = [
        "--runtime",
        str(runtime),
        "--state",
        str(state),
        "--script",
        json.dumps(script),
        "--config",
        json.dumps(_patient(config or {})),
    ]
    with log.open("a") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "inferd.front.fake", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(env or {})},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), log.read_text()
    return Daemon(runtime, process, log)


def _patient(config: dict[str, Any]) -> dict[str, Any]:
    """`Raw` sends no pings: it must not be forgotten where a test takes long."""
    return {**config, "daemon": {"client_timeout_s": 600.0, **config.get("daemon", {})}}


@contextmanager
def daemon(*, env: dict[str, str] | None = None, config: Any = None, **script: Any) -> Iterator[Daemon]:
    """Run the fake daemon in a folder of its own; end it and its clients."""
    folder = Path(tempfile.mkdtemp(prefix="infd"))
    running = launch(folder / "run", env=env, config=config, **script)
    try:
        yield running
    finally:
        for client in running.clients:
            client.close()
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
        shutil.rmtree(folder)


class Raw:
    """Both sockets of one client, spoken to in plain frames."""

    def __init__(self, runtime: Path, name: str = "test", *, hello: bool = True, session: str | None = None) -> None:
        self._context = zmq.Context()
        self._ids = itertools.count()
        self.name = name
        self.runtime = runtime
        self.data = self._connect("data.sock")
        self.control = self._connect("control.sock")
        self.inbox: list[Any] = []
        self.session = session
        if hello:
            self.hello()

    def _connect(self, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.connect(f"ipc://{self.runtime / name}")
        return socket

    def hello(self) -> p.Welcome:
        """Begin or resume on both sockets."""
        self.control.send_multipart(p.encode(p.Hello(client=self.name, session=self.session)))
        welcome = self._receive(self.control, WAIT_S)
        assert isinstance(welcome, p.Welcome), welcome
        self.session = welcome.session
        self.data.send_multipart(p.encode(p.Hello(client=self.name, session=self.session)))
        answer = self._receive(self.data, WAIT_S)
        assert isinstance(answer, p.Welcome), answer
        assert answer.session == self.session
        self.welcome = welcome
        return welcome

    def send(self, message: Any) -> None:
        self.data.send_multipart(p.encode(message))

    def generate(self, prompt: str | None = "hello", **fields: Any) -> str:
        """Send a request; keyword arguments of sampling are told apart by their names."""
        request_id = fields.pop("id", None) or f"r{next(self._ids)}"
        sampling = {k: fields.pop(k) for k in list(fields) if k in p.SamplingParams.__struct_fields__}
        self.send(p.Generate(id=request_id, prompt=prompt, sampling=p.SamplingParams(**sampling), **fields))
        return request_id

    def call(self, message: Any, timeout_s: float = WAIT_S) -> Any:
        """Send on control and return the answer to it."""
        self.control.send_multipart(p.encode(message))
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0:
            answer = self._receive(self.control, left)
            if getattr(answer, "id", None) == message.id and not isinstance(answer, p.Progress):
                return answer
        raise TimeoutError(f"no answer to {message}")

    def status(self) -> p.StatusReply:
        return self.call(p.Status(id=f"s{next(self._ids)}"))

    def receive(self, timeout_s: float = WAIT_S) -> Any:
        """Return the next message of the data socket, None when the time is over."""
        return self._receive(self.data, timeout_s)

    def until(self, request_id: str, kind: Any, timeout_s: float = WAIT_S) -> Any:
        """Return the next message of this kind about a request; what comes before waits in `inbox`."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            message = self.receive(left)
            if message is None:
                break
            self.inbox.append(message)
            if isinstance(message, kind) and message.id == request_id:
                return message
        raise TimeoutError(f"{kind} of {request_id} did not come; got {self.inbox[-3:]}")

    def finish(self, request_id: str, timeout_s: float = WAIT_S) -> p.Done | p.Error:
        for message in self.inbox:
            if isinstance(message, (p.Done, p.Error)) and message.id == request_id:
                return message
        return self.until(request_id, (p.Done, p.Error), timeout_s)

    def tokens(self, request_id: str) -> list[p.Tokens]:
        """Return what came so far, checked to be without gaps."""
        found = [m for m in self.inbox if isinstance(m, p.Tokens) and m.id == request_id]
        assert [m.seq for m in found] == list(range(len(found)))
        return found

    def text(self, request_id: str, choice: int = 0) -> str:
        return "".join(m.text for m in self.tokens(request_id) if m.choice == choice)

    def run(self, prompt: str | None = "hello", **fields: Any) -> tuple[str, p.Done | p.Error]:
        """Generate and wait; text and end."""
        request_id = self.generate(prompt, **fields)
        end = self.finish(request_id)
        return self.text(request_id), end

    def _receive(self, socket: zmq.Socket[bytes], timeout_s: float) -> Any:
        if not socket.poll(timeout_s * 1000):
            return None
        return p.decode(socket.recv_multipart(), p.answer_decoder, max_frame=1 << 30)

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def streaming(runtime: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A client process that has begun to stream the prompt `foreign` and never ends by itself."""
    import inferd_client

    script = Path(__file__).with_name("streaming_client.py")
    paths = [str(Path(inferd_client.__file__).parents[1]), str(Path(zmq.__file__).parents[1])]
    command = [sys.executable, "-S", str(script), *paths, str(runtime)]  # -S: no slow start of site-packages
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"streaming\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def eventually(check: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """Return the first true value of `check`."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        value = check()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not become true in time")


def worker_pid(client: Raw) -> int:
    """Wait for the default model and return the process of its engine."""

    def ready() -> int | None:
        models = client.status().models
        return models[0].pid if models and models[0].state == "ready" else None

    return eventually(ready)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads, to the nanosecond: what others do on the machine adds nothing to it."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


KILL = signal.SIGKILL
