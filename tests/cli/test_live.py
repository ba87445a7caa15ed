"""Commands against a running daemon: the real front, sockets and text process, with scripted answers."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from inferd_client import Client
from inferd_client.testing import FakeDaemon
from tests.cli.tool import COMMAND, Tool

pytestmark = pytest.mark.daemon

REPLY = "Hello \x1b[2Jthere\x9b31m"
SAFE = "Hello ␛[2Jthere�31m"


@pytest.fixture(scope="module")
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon({"reply": REPLY, "models": ["one", "two"]}) as running:
        yield running


@pytest.fixture
def live(daemon: FakeDaemon, tmp_path: Path) -> Tool:
    return Tool(tmp_path, daemon.runtime)


def test_run_streams_text_without_control_characters(live: Tool) -> None:
    ran = live("run", "hi")
    assert (ran.code, ran.out, ran.err) == (0, SAFE, "")


def test_run_reads_stdin_and_prints_json_with_the_exact_text(live: Tool) -> None:
    ran = live("run", "--json", stdin="hi there")
    assert ran.code == 0
    assert ran.json["text"] == REPLY
    assert ran.json["usage"]["completion_tokens"] == len(ran.json["ids"])
    assert set(ran.json) == {"id", "text", "finish", "seed", "ids", "usage", "timings", "cost"}
    assert not {c for c in ran.out if c < " " and c != "\n"} | {c for c in ran.out if "\x7f" <= c < "\xa0"}


def test_run_takes_sampling_options(live: Tool) -> None:
    ran = live("run", "--json", "--max-tokens", "3", "--seed", "7", "hi")
    assert (len(ran.json["ids"]), ran.json["seed"], ran.json["finish"]) == (3, 7, "length")
    assert live("run", "--json", "--stop", "there", "hi").json["text"] == REPLY.partition("there")[0]


def test_run_stats_go_to_stderr(live: Tool) -> None:
    ran = live("run", "--stats", "hi")
    assert ran.out == SAFE
    assert "TTFT" in ran.err
    assert "tokens/s" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("run", "--temperature", "-1", "x"), Exit.USAGE, "temperature"),
        (("run", "--repetition-penalty", "1e-40", "x"), Exit.USAGE, "within 0.01 and 100"),
        (("run", "--regex", "a", "--choice", "b", "x"), Exit.USAGE, "at most one of"),
        (("run", "--json-schema", "/nowhere.json", "x"), Exit.NO_MODEL, "/nowhere.json"),
        (("run", "--model", "nope", "x"), Exit.NO_MODEL, "inferd ls"),
        (("load", "nope"), Exit.NO_MODEL, "nope"),
        (("run", "--max-tokens", "999999999", "x"), Exit.FAILURE, "context"),
    ],
)
def test_refusals_are_one_line(live: Tool, arguments: tuple[str, ...], code: Exit, text: str) -> None:
    ran = live(*arguments)
    assert (ran.code, ran.err.count("\n"), ran.out) == (code, 1, "")
    assert text in ran.err


def test_ps_and_status(live: Tool) -> None:
    assert "one" in live("ps").out
    assert live("ps", "--json").json[0]["state"] == "ready"
    status = live("status", "--json").json
    assert (status["live"], status["ready"], status["default_model"]) == (True, True, "one")
    assert {"devices", "models", "requests", "counters", "latency", "warnings"} <= set(status)
    assert live("status").out.startswith("inferd ")


def test_status_watch_prints_again_and_ends_with_the_interrupt_code(live: Tool) -> None:
    command = [*COMMAND, "--runtime", str(live.runtime), "status", "--watch", "--interval", "0.1", "--json"]
    with subprocess.Popen(command, env=live.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        seen = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=60)
    assert [s["version"] for s in seen] == [seen[0]["version"]] * 3
    assert (watch.returncode, err) == (Exit.INTERRUPTED, b"\n")


def test_top_once_is_a_snapshot_of_the_events_socket(live: Tool) -> None:
    snapshot = live("top", "--once", "--json").json
    assert snapshot["seq"] > 0
    assert snapshot["models"][0]["name"] == "one"
    assert "one" in live("top", "--once").out


def test_load_and_unload(live: Tool) -> None:
    assert live("load", "two").code == 0
    assert {m["name"] for m in live("ps", "--json").json} == {"one", "two"}
    assert "two is unloaded" in live("unload", "two").err
    assert "two is not loaded" in live("unload", "two").err
    assert {m["name"] for m in live("ps", "--json").json if m["state"] == "ready"} == {"one"}


def test_render_and_tokenize(live: Tool) -> None:
    rendered = live("render", "hi", "--json").json
    assert "hi" in rendered["text"]
    ids = live("tokenize", "hi", "--no-bos", "--json").json
    assert live("tokenize", "-", "--no-bos", stdin="hi").out.split() == [str(i) for i in ids]
    assert live("render", "[{", "--messages").code == Exit.USAGE


def test_plugins_of_the_daemon(live: Tool) -> None:
    ran = live("plugins", "list", "--json")
    assert ran.code == 0
    assert isinstance(ran.json, list)


def test_chat_keeps_history_and_knows_commands(live: Tool) -> None:
    typed = ["hi", "/system be kind", "more\\", "lines", "/history", "/nope", "/set temperature=0", "/set nope=1"]
    ran = live("chat", stdin="\n".join([*typed, "/reset", "/history", "/exit", "never", ""]))
    assert ran.code == 0
    assert ran.out.count(SAFE) == 4  # two answers, and the two of the history
    assert "user: more\nlines" in ran.out
    assert "never" not in ran.out
    assert "there is no command /nope" in ran.err
    assert "no sampling option nope" in ran.err


def test_chat_survives_a_refused_request(live: Tool) -> None:
    ran = live("chat", stdin="/model nope\nhi\n/model one\nhi\n")
    assert ran.code == 0
    assert ran.out.count(SAFE) == 1
    assert "nope" in ran.err


def test_run_on_a_terminal_ends_its_line_and_sends_no_escapes(live: Tool) -> None:
    out = on_terminal(live, "run", "hi")
    assert "␛[2J" in out
    assert "\x1b" not in out
    assert out.endswith("\n")


def on_terminal(tool: Tool, *arguments: str) -> str:
    """Run with a pseudo-terminal as stdout."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--runtime", str(tool.runtime), *arguments]
    with subprocess.Popen(command, env=tool.env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        parts = []
        while select.select([ours], [], [], 60)[0]:
            try:
                parts.append(os.read(ours, 4096))
            except OSError:  # the terminal is gone with its last user
                break
        process.wait(60)
    os.close(ours)
    return b"".join(parts).decode()


def running_requests(client: Client) -> int:
    return len(client.status().requests)


def wait_for(condition: object, limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not condition():  # pyright: ignore[reportCallIssue]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def slow() -> Iterator[FakeDaemon]:
    with FakeDaemon({"reply": "word " * 400, "delay_s": 0.05}) as running:
        yield running


def start(daemon: FakeDaemon, home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    tool = Tool(home, daemon.runtime)
    command = [*COMMAND, "--runtime", str(tool.runtime), *arguments]
    return subprocess.Popen(
        command, env=tool.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_an_interrupted_run_is_cancelled_at_the_daemon(slow: FakeDaemon, tmp_path: Path) -> None:
    with Client(slow.runtime) as client, start(slow, tmp_path, "run", "hi") as running:
        assert running.stdout is not None
        assert running.stdout.read(4) == b"word"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
        assert (running.returncode, err) == (Exit.INTERRUPTED, b"\n")
        wait_for(lambda: running_requests(client) == 0)


def test_an_interrupt_in_a_chat_cancels_the_answer_only(slow: FakeDaemon, tmp_path: Path) -> None:
    with Client(slow.runtime) as client, start(slow, tmp_path, "chat") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"hi\n")
        running.stdin.flush()
        assert running.stdout.read(4) == b"word"
        running.send_signal(signal.SIGINT)
        wait_for(lambda: running_requests(client) == 0)
        out, err = running.communicate(b"/history\n", timeout=60)
        assert running.returncode == 0
        assert b"user: hi\nassistant: word" in out
        assert b"cancelled" in err


def test_cancel_ends_the_request_of_another_program(slow: FakeDaemon, tmp_path: Path) -> None:
    tool = Tool(tmp_path, slow.runtime)
    with Client(slow.runtime) as client, client.chat("hi", stream=True) as stream:
        next(stream)
        assert tool("cancel", stream.id).code == 0
        assert stream.result().finish == "cancelled"
    again = tool("cancel", stream.id)
    assert (again.code, again.err.count("\n")) == (Exit.FAILURE, 1)


def test_stop_drains_and_waits_for_the_end(slow: FakeDaemon, tmp_path: Path) -> None:
    tool = Tool(tmp_path, slow.runtime)
    pid = slow.pid
    assert pid is not None
    with start(slow, tmp_path, "run", "hi") as running:
        assert running.stdout is not None
        running.stdout.read(4)
        stopped = tool("stop", "--timeout", "0.3")
        running.communicate(timeout=60)
    assert stopped.code == 0
    assert f"pid {pid}" in stopped.err
    assert running.returncode == Exit.FAILURE
    assert tool("ps").code == Exit.NOT_RUNNING


def test_a_full_queue_is_the_busy_code(tmp_path: Path) -> None:
    script = {"reply": "word " * 700, "delay_s": 0.05, "max_sequences": 1}
    with FakeDaemon(script, config={"daemon": {"max_queue": 1}}) as full, Client(full.runtime) as client:
        streams = [client.chat("x", stream=True) for _ in range(2)]
        wait_for(lambda: running_requests(client) == 2)
        ran = Tool(tmp_path, full.runtime)("run", "hi")
        for stream in streams:
            stream.close()
    assert ran.code == Exit.BUSY
    assert ran.err.count("\n") == 1
