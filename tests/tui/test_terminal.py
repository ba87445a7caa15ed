"""The monitor in a real terminal (tmux), over the fake and over the real daemon, through its death and return."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from inferd_client import Client
from inferd_client.endpoints import CONTROL_SOCKET
from inferd_client.testing import FakeDaemon

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

INFERD = shlex.join([sys.executable, "-m", "inferd.cli.main"])


class Terminal:
    """One tmux server of our own with one pane."""

    def __init__(self, command: str, *, columns: int = 80, rows: int = 24) -> None:
        self._folder = tempfile.mkdtemp(prefix="inferd-tmux-")
        self._socket = str(Path(self._folder, "s"))
        size = ("-x", str(columns), "-y", str(rows))
        alone = "unset COLUMNS LINES"  # pytest imports readline, which hands its own idea of them to children
        shell = f"{alone}; LANG=C.UTF-8 {command}; echo ended $?; sleep 600"
        self._tmux("-f", os.devnull, "new-session", "-d", *size, shell)

    def screen(self, *, escapes: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(("-e",) if escapes else ()))

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def until(self, wanted: str, timeout: float = 60.0) -> str:
        end = time.monotonic() + timeout
        while wanted not in (shown := self.screen()):
            assert time.monotonic() < end, f"{wanted!r} is not in:\n{shown}"
            time.sleep(0.1)
        return shown

    def until_gone(self, unwanted: str, timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        while unwanted in (shown := self.screen()):
            assert time.monotonic() < end, f"{unwanted!r} is still in:\n{shown}"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-S", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def top(runtime: Path, *options: str) -> str:
    return f"{INFERD} --runtime {shlex.quote(str(runtime))} top {' '.join(options)}"


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    with FakeDaemon({"models": ["one"], "delay_s": 0.05}) as daemon:
        daemon.wait_ready()
        yield daemon


def test_it_follows_a_daemon_through_its_death(fake: FakeDaemon) -> None:
    with Terminal("NO_COLOR=1 " + top(fake.runtime)) as terminal, fake.client() as client:
        terminal.until("one ready")
        for panel in ("memory", "batch", "latency", "throughput", "requests (0)", "log"):
            terminal.until(f"─{panel}")
        coloured = [code for code in terminal.screen(escapes=True).split("\x1b[")[1:] if code.startswith(("3", "4"))]
        assert [code for code in coloured if not code.startswith(("39m", "49m", "39;49m"))] == []
        with client.generate("a " * 300, max_tokens=3000, stream=True) as stream:
            next(stream)
            terminal.until("requests (1)")
            terminal.press("c")
            terminal.until("Cancel request")
            terminal.press("y")
            assert stream.result().finish == "cancelled"
        terminal.until("requests (0)")
        terminal.resize(1, 1)
        terminal.resize(100, 40)
        fake.kill()
        terminal.until("NO NEWS")
        fake.start()
        terminal.until("the daemon was started anew")
        terminal.until_gone("NO NEWS")
        terminal.press("q")
        terminal.until("ended 0")


@pytest.mark.full
@pytest.mark.daemon
@pytest.mark.smollm2
def test_it_watches_the_real_daemon(default_model: Path, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    serve = [*shlex.split(INFERD), "--runtime", str(runtime), "serve", str(default_model)]
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(serve, stdout=log, stderr=log)
    try:
        while not (runtime / CONTROL_SOCKET).exists():
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        with Client(runtime) as client:
            client.generate("Hello", max_tokens=2)
            with Terminal(top(runtime), columns=120, rows=40) as terminal:
                client.generate("Tell me of the sea.", max_tokens=24)
                shown = terminal.until("kv paged")
                assert "attention " in shown
                assert "exactness" in shown
                terminal.until("(system memory)")
                terminal.press("g")
                terminal.until("chosen")
                terminal.press("q")
                terminal.until("ended 0")
    finally:
        daemon.terminate()
        daemon.wait(60)
