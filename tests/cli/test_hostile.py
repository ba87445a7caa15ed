"""Whatever names and answers hold, no command sends a control character to a terminal."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_client import Client
from inferd_client.testing import FakeDaemon
from tests.cli.test_live import on_terminal
from tests.cli.tool import COMMAND, Tool

pytestmark = pytest.mark.daemon

EVIL = "e\x1b]0;t\x07v\x1b[2Ji\x9b31ml\u202e"
MARK = "e␛]0;t␇v␛[2Ji"
READS = (
    ("ps",),
    ("ls",),
    ("status",),
    ("top", "--once"),
    ("run", "hi"),
    ("tokenize", "hi"),
    ("render", EVIL),
    ("metrics",),
    ("unload", EVIL),
    ("load", "x" + EVIL),
    ("plugins", "list"),
    ("traffic", "show"),
)
SHOWS_IT = {"ps", "status", "top", "run", "render", "unload", "load"}


@pytest.fixture(scope="module")
def hostile() -> Iterator[FakeDaemon]:
    with FakeDaemon({"reply": EVIL * 3, "models": ["one", EVIL], "delay_s": 0.02}) as running:
        yield running


def test_every_reading_command(hostile: FakeDaemon, tmp_path: Path) -> None:
    tool = Tool(tmp_path, hostile.runtime)
    with Client(hostile.runtime, name=EVIL) as client:
        client.load(EVIL)
        stream = client.generate("x", stream=True, request_id=EVIL, ignore_eos=True, max_tokens=4000)
        next(iter(stream))
        for arguments in READS:
            out = on_terminal(tool, *arguments)
            bad = {repr(c) for c in out if (c < " " and c not in "\r\n\t") or "\x7f" <= c < "\xa0" or c == "\u202e"}
            assert not bad, (arguments, bad, out)
            if arguments[0] in SHOWS_IT:
                assert MARK in out, (arguments, out)
        stream.close()


def test_a_chat(hostile: FakeDaemon, tmp_path: Path) -> None:
    tool = Tool(tmp_path, hostile.runtime)
    command = [*COMMAND, "--runtime", str(tool.runtime), "chat", "--system", EVIL]
    ran = subprocess.run(
        command, env=tool.env, input=f"{EVIL}\n/history\n".encode(), capture_output=True, check=True, timeout=60
    )
    out = (ran.stdout + ran.stderr).decode()
    assert MARK in out
    assert not {c for c in out if (c < " " and c not in "\n\t") or "\x7f" <= c < "\xa0" or c == "\u202e"}
