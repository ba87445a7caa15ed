"""`inferd gateway` as a user starts it: the token file, the address, what it refuses."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inferd_client.testing import FakeDaemon
from tests.cli.tool import COMMAND, Tool
from tests.gateway.running import Running


@pytest.fixture
def tool(tmp_path: Path, daemon: FakeDaemon) -> Tool:
    return Tool(tmp_path, daemon.runtime)


@contextmanager
def started(tool: Tool, *options: str, before: tuple[str, ...] = ()) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the command, with options `before` its name; yield the line that says where it serves."""
    with tempfile.TemporaryFile("w+") as notes:
        command = [*COMMAND, "--runtime", str(tool.runtime), *before, "gateway", "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=notes, text=True, env=tool.env)
        assert process.stdout is not None
        try:
            yield process.stdout.readline(), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            process.stdout.close()


def port_of(line: str) -> int:
    assert line.startswith("serving http://127.0.0.1:")
    return int(line.split(":")[2].split("/")[0])


def test_it_makes_a_token_and_serves_with_it(tool: Tool, tmp_path: Path):
    file = tmp_path / "state" / "token"
    with started(tool, "--token-file", str(file)) as (line, process):
        token = file.read_text().strip()
        running = Running(port_of(line), token)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(token) >= 32
        assert running.chat("hello", model="fake").status == 200
        assert running.raw("GET", "/v1/models", authorization="Bearer x").status == 401
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    assert file.read_text().strip() == token


def test_no_auth_on_loopback(tool: Tool):
    with started(tool, "--no-auth") as (line, _):
        running = Running(port_of(line), None)
        assert running.raw("GET", "/v1/models").status == 200
        assert running.raw("GET", "/v1/models", host="evil.example").status == 403


def test_what_it_refuses(tool: Tool, tmp_path: Path):
    shared = tmp_path / "shared"
    shared.write_text("0123456789abcdef\n")
    shared.chmod(0o644)
    short = tmp_path / "short"
    short.write_text("abc\n")
    short.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = [
            (("--no-auth", "--host", "0.0.0.0"), 2, "--no-auth"),
            (("--token-file", str(shared)), 78, "chmod 600"),
            (("--token-file", str(short)), 78, "holds no token"),
            (("--no-auth", "--port", port), 75, "cannot listen"),
        ]
        for options, code, text in cases:
            ran = tool("gateway", *options)
            assert (ran.code, ran.out) == (code, "")
            assert text in ran.err
    assert os.access(shared, os.R_OK)
