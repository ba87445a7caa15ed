"""`inferd keys`, from the first key to a client of a real daemon on tcp."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from tests.cli.tool import Tool
from tests.front.harness import launch
from tests.ports import free_port

pytestmark = pytest.mark.daemon


def test_from_a_key_to_an_answer(tool: Tool, tmp_path: Path) -> None:
    state, file = tool.runtime / "run-state", tmp_path / "laptop.key"
    address = f"tcp://127.0.0.1:{free_port(3)}"
    here = ("--set", f"paths.state={state}", "--set", f"daemon.tcp={address}")
    made = tool(*here, "keys", "new", "laptop", "--role", "user", "--out", str(file))
    assert made.code == 0, made.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f'server = "{address}"' in file.read_text()
    assert stat.S_IMODE((state / "keys").stat().st_mode) == 0o700
    listed = tool(*here, "keys", "list", "--json").json
    assert listed["clients"]["laptop"]["role"] == "user"
    assert f'server_key = "{listed["server"]}"' in file.read_text()
    assert "secret" not in str(listed)
    assert "laptop  user" in tool(*here, "keys", "list").out

    daemon = launch(tool.runtime / "run", config={"daemon": {"tcp": address}})
    try:
        ran = tool("--key", str(file), "run", "--raw", "over tcp")
        assert (ran.code, ran.out) == (0, "over tcp"), ran.err
        load = ("--input-len", "4", "--output-len", "2", "--requests", "2", "--warmup", "0")
        measured = tool("--key", str(file), "bench", "serve", *load)
        assert (measured.code, "failed: none" in measured.out) == (0, True), measured.err
        refused = tool("--key", str(file), "top", "--once")
        assert (refused.code, refused.err.count("\n")) == (Exit.FAILURE, 1)
        assert "role admin" in refused.err
        refused = tool("--key", str(file), "load", "fake")
        assert refused.code == Exit.FAILURE
        assert "needs the role admin" in refused.err
        key = listed["clients"]["laptop"]["public_key"]
        assert tool(*here, "keys", "allow", "laptop", key, "--role", "admin").code == 0
        assert tool("--key", str(file), "load", "fake").code == 0
        assert tool("--key", str(file), "top", "--once", "--json").json["models"][0]["name"] == "fake"
        assert tool(*here, "keys", "revoke", "laptop").code == 0
        locked_out = tool("--key", str(file), "status")
        assert locked_out.code == Exit.NOT_RUNNING
        assert "allows this key" in locked_out.err
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_what_cannot_be_is_one_line(tool: Tool, tmp_path: Path) -> None:
    here = ("--set", f"paths.state={tmp_path / 'state'}")
    key = tmp_path / "a.key"
    assert tool(*here, "keys", "new", "a", "--role", "user", "--out", str(key)).code == 0
    public = tool(*here, "keys", "list", "--json").json["clients"]["a"]["public_key"]
    for arguments, text in [
        (("new", "a", "--out", str(key)), "exists"),
        (("new", "no/name"), "is not a name"),
        (("new", "b", "--server", "http://x"), "is not tcp://"),
        (("allow", "b", "short", "--role", "user"), "40 characters"),
        (("allow", "b", public, "--role", "user"), "already allowed, as a"),
        (("revoke", "b"), "no client named"),
    ]:
        ran = tool(*here, "keys", *arguments)
        assert (ran.code != 0, ran.err.count("\n")) == (True, 1), ran.err
        assert text in ran.err
    key.chmod(0o644)
    ran = tool("--key", str(key), "status")
    assert (ran.code, ran.err.count("\n")) == (Exit.CONFIG, 1)
    assert f"chmod 600 {key}" in ran.err
    (tmp_path / "state" / "keys" / "clients.toml").chmod(0o644)
    assert "chmod 600" in tool(*here, "keys", "list").err
