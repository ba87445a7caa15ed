"""Progress on a terminal and elsewhere. What takes long shows something; scripts get plain lines or nothing."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferd.cli import progress
from inferd.cli.progress import LoadDisplay, PhaseBar, ServeDisplay
from inferd_client.protocol import Progress
from inferd_client.testing import FakeDaemon
from tests.cli.tool import COMMAND, Tool
from tests.tiny import tiny_llama

PLAIN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def written_on_terminal(command: list[str], environment: dict[str, str], until: str = "", seconds: float = 90.0) -> str:
    """Run a command whose stderr is a terminal; return what it wrote there."""
    parent, child = pty.openpty()
    env = environment | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=child, env=env)
    os.close(child)
    shown, end = b"", time.monotonic() + seconds
    while time.monotonic() < end and select.select([parent], [], [], seconds)[0]:
        try:
            data = os.read(parent, 65536)
        except OSError:  # all ends of the terminal are closed
            break
        shown += data
        if until and until.encode() in shown:
            break
    process.terminate() if until else None
    process.wait(seconds)
    os.close(parent)
    return shown.decode(errors="replace")


def on_terminal(tool: Tool, *arguments: str, until: str = "", seconds: float = 90.0) -> str:
    """Run an inferd command whose stderr is a terminal; return what it showed there, without escapes."""
    command = [*COMMAND, "--runtime", str(tool.runtime), *arguments]
    return PLAIN.sub("", written_on_terminal(command, tool.env, until, seconds))


LOGS_BESIDE_BARS = """
import time
from inferd.cli.progress import ServeDisplay
from inferd.config.schema import Log
from inferd.log import make_logger

log = make_logger(Log(), "front")
with ServeDisplay() as display:
    for model in ("one", "two"):
        display.update(model, "reading", 1, 2)
    time.sleep(0.3)
    log.info("first")
    display.update("one", "", 0, 0)
    log.info("second")
    display.update("two", "", 0, 0)
log.info("third")
"""


def screen_of(written: str) -> list[str]:
    """Return the lines that stand on a terminal in the end: it obeys line ends, cursor up and erasing of lines."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[(?:2K|1A)|\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith(("\x1b", "\r")):
            lines[row] += part
    return [line.strip() for line in lines if line.strip()]


def test_log_lines_stand_above_the_bars_of_loads(tmp_path: Path) -> None:
    script = tmp_path / "logs.py"
    script.write_text(LOGS_BESIDE_BARS)
    written = written_on_terminal([sys.executable, str(script)], dict(os.environ))
    for bar in ("one", "two"):
        assert f"{bar}: reading" in written
    screen = screen_of(written)
    assert [line.split("]", 1)[1].split()[0] for line in screen] == ["first", "second", "third"], screen


def test_off_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with PhaseBar("pull", "bytes") as bar, PhaseBar("bench", "count") as counts:
        for second in range(12):
            now = float(second)
            bar.update("fetching", second << 20, 20 << 20)
            counts.update("2 a second", second, 0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "inferd: pull: fetching 5.0 MiB of 20.0 MiB",
        "inferd: bench: 2 a second 5",
        "inferd: pull: fetching 10.0 MiB of 20.0 MiB",
        "inferd: bench: 2 a second 10",
    ]


def test_off_a_terminal_each_phase_of_a_load_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with LoadDisplay("m") as display:
        for reason in ("reading", "reading", "packing", ""):
            display.update(Progress(id="r", state="loading", reason=reason))
        display.update(Progress(id="r", state="prefill", reason="budget"))
    with ServeDisplay() as serve:
        serve.update("m", "reading", 1, 2)
        serve.update("m", "", 0, 0)
    assert capsys.readouterr() == ("", "inferd: m: reading\ninferd: m: packing\n")


@pytest.mark.daemon
def test_a_load_shows_a_bar_until_the_answer_comes(tmp_path: Path) -> None:
    with FakeDaemon({"load_s": 3.0, "reply": "hello"}, config={"preload": False}) as daemon:
        shown = on_terminal(Tool(tmp_path, daemon.runtime), "run", "hi")
        assert "model: reading weights" in shown
        assert re.search(r"\d+%", shown)
        assert "inferd:" not in shown


@pytest.mark.daemon
def test_a_load_on_demand_shows_its_bar(tmp_path: Path) -> None:
    with FakeDaemon({"models": ["one", "two"], "load_s": 3.0}, config={"preload": False}) as daemon:
        shown = on_terminal(Tool(tmp_path, daemon.runtime), "load", "two")
        assert "two: reading weights" in shown
        assert "two is ready" in shown


@pytest.mark.daemon
def test_bench_shows_how_many_are_done(tmp_path: Path) -> None:
    with FakeDaemon({"delay_s": 0.01}) as daemon:
        daemon.wait_ready()
        lengths = ("--input-len", "10", "--output-len", "10", "--requests", "6", "--warmup", "0")
        shown = on_terminal(Tool(tmp_path, daemon.runtime), "bench", "serve", *lengths)
        assert "bench: 1 at a time" in shown
        assert re.search(r"\d+/6", shown)


@pytest.mark.daemon
def test_serve_shows_the_load_of_its_model(tmp_path: Path, tool: Tool) -> None:
    shown = on_terminal(tool, "serve", str(tiny_llama(tmp_path / "tiny")), until="model ready")
    assert re.search(r"tiny: \w+.*\d+%", shown), shown
