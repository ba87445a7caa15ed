"""`inferd serve` with a real model, as two commands at two terminals see it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from tests.cli.tool import COMMAND, Ran, Tool
from tests.tiny import tiny_llama

pytestmark = pytest.mark.daemon


@contextmanager
def serving(tool: Tool, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `inferd serve` until it is ready; end it afterwards."""
    log = (tool.home / "log").open("wb")
    command = [*COMMAND, "--runtime", str(tool.runtime), "serve", *arguments]
    with log, subprocess.Popen(command, env=tool.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as daemon:
        try:
            wait_until_ready(tool, daemon)
            yield daemon
        finally:
            daemon.kill()


def wait_until_ready(tool: Tool, daemon: subprocess.Popen[bytes]) -> Ran:
    end = time.monotonic() + 60
    while True:
        ran = tool("status", "--json")
        if ran.code == 0 and ran.json["ready"]:
            return ran
        assert daemon.poll() is None, (tool.home / "log").read_text()
        assert time.monotonic() < end, (tool.home / "log").read_text()
        time.sleep(0.1)


def test_a_day_with_a_daemon(tool: Tool, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    with serving(
        tool, str(model), "--max-context", "64", "--kv", "contiguous", "--set", "engine.block_size=8"
    ) as daemon:
        ran = tool("run", "--json", "--raw", "--max-tokens", "5", "--temperature", "0", "ab")
        assert ran.code == 0, ran.err
        assert len(ran.json["ids"]) == 5

        loaded = tool("ps", "--json").json[0]
        assert loaded["plugins"]["kv"] == "contiguous"
        shape = tool("show", str(model), "--shape", "--json").json
        assert shape["max_context"] == {"value": 64, "origin": "config"}
        assert shape["block_size"]["value"] == 8
        assert all(entry["origin"] for entry in shape.values())
        assert "known once it is loaded" not in tool("show", str(model)).out
        assert tool("show", str(model), "--json").json["weights"]

        second = tool("serve", str(model))
        assert second.code == Exit.BUSY
        assert f"pid {daemon.pid}" in second.err

        assert tool("stop").code == 0
        assert daemon.wait(60) == 0
    assert tool("ps").code == Exit.NOT_RUNNING


@pytest.mark.parametrize("named", [True, False], ids=["named", "default"])
def test_a_model_that_cannot_be_served_ends_the_command_with_the_reason(
    tool: Tool, tmp_path: Path, named: bool
) -> None:
    """Only the engine finds out that a sequence does not fit into so few bytes."""
    model = tiny_llama(tmp_path / "tiny")
    which = [str(model)] if named else ["--set", f"default_model={model}"]
    ran = tool("serve", *which, "--set", "engine.max_context=64", "--set", "engine.kv_bytes=1")
    assert ran.code == Exit.FAILURE
    reason = ran.err.splitlines()[-1]
    assert reason.startswith("inferd: cannot serve tiny: one sequence of 64 tokens needs")
    assert "lower engine.max_sequences" in reason
    assert "inferd config show --origin" in reason
    assert not (tool.runtime / "control.sock").exists()


def test_what_systemd_hears_of_a_real_daemon(tool: Tool, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    address = tool.runtime.with_suffix(".notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(address))
        notify.settimeout(60)
        command = [*COMMAND, "--runtime", str(tool.runtime), "serve", str(model), "--set", "engine.max_context=64"]
        env = tool.env | {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "1000000"}
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
            try:
                told = [notify.recv(4096).decode()]
                while told[-1] != "READY=1":
                    told.append(notify.recv(4096).decode())
                assert any(line.startswith("STATUS=tiny: loading") for line in told)
                assert "EXTEND_TIMEOUT_USEC=15000000" in told
                assert tool("status", "--json").json["models"][0]["state"] == "ready"
                assert tool("run", "--raw", "--max-tokens", "2", "ab").code == 0
                while notify.recv(4096) != b"WATCHDOG=1":
                    pass
                daemon.terminate()
                while not notify.recv(4096).startswith(b"STOPPING=1\nEXTEND_TIMEOUT_USEC="):
                    pass
                assert daemon.wait(60) == 0
            finally:
                daemon.kill()
                address.unlink()


def test_show_of_a_model_that_is_not_loaded(tool: Tool, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    found = tool("show", str(model), "--json").json
    assert (found["format"], found["architecture"], found["problem"]) == ("hf", "llama", "")
    assert found["model"]["context"] > 0
    assert sum(part["bytes"] for part in found["quantization"].values()) == found["bytes"]
    assert tool("show", str(model), "--template").out.strip() == found["tokenizer"]["template"].strip()
    computed = tool("show", str(model), "--shape", "--json")
    assert computed.json["max_context"]["value"] == found["model"]["context"]
    assert "not loaded" in computed.err


def test_a_model_goes_into_the_store_and_out(tool: Tool, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    assert tool("pull", f"file:{model}", "--name", "mine").code == 0
    assert [m["name"] for m in tool("ls", "--json").json] == ["mine"]
    assert "mine" in tool("ls").out
    assert tool("show", "mine").out.startswith("mine: llama")
    assert tool("rm", "mine").code == 0
    assert tool("ls", "--json").json == []


def test_repacked_weights_show_in_ls_and_go_with_rm(tool: Tool, tmp_path: Path) -> None:
    from inferd.load.repack_cache import Purpose, RepackCache
    from tests.load.test_repack import matrices

    assert tool("pull", f"file:{tiny_llama(tmp_path / 'tiny')}", "--name", "mine").code == 0
    (found,) = tool("ls", "--json").json
    assert found["repacked_bytes"] == 0
    cache = RepackCache(tool.home / ".cache" / "inferd", 1 << 30)
    cache.save(Path(found["path"]), Purpose("avx2", "1", ""), matrices())
    (found,) = tool("ls", "--json").json
    assert found["repacked_bytes"] == sum(path.stat().st_size for path in cache.folder.glob("*.repacked")) > 0
    assert "REPACKED" in tool("ls").out
    assert "of repacked weights" in tool("rm", "mine").err
    assert not list(cache.folder.glob("*.repacked"))


def test_the_conformance_kit_runs_from_the_command(tool: Tool) -> None:
    ran = tool("plugins", "check", "kv.contiguous", "--json", timeout=120)
    assert (ran.code, ran.json["ok"]) == (0, True), ran.out + ran.err
    assert len(ran.json["results"]) > 3


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--kv-format", "fp8", "--attention", "torch"], "bf16, fp16, fp32"),
        (["--kv-format", "int8", "--attention", "torch"], "bf16, fp16, fp32"),
    ],
)
def test_a_kv_format_that_nothing_here_keeps_is_refused_before_anything_starts(
    tool: Tool, options: list[str], remedy: str
) -> None:
    ran = tool("serve", "--device", "cpu", *options)
    assert ran.code == Exit.CONFIG
    assert "engine.kv_format" in ran.err
    assert f"one of {remedy}" in " ".join(ran.err.split())


def test_a_plugin_that_is_not_there_is_refused_before_anything_starts(tool: Tool) -> None:
    ran = tool("serve", "--attention", "tosch")
    assert ran.code == Exit.CONFIG
    assert "plugins.attention" in ran.err
    assert "did you mean 'torch'?" in ran.err
