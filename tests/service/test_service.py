"""`inferd service`: what it writes and what it asks of systemctl, which is a recorder here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd.cli.exits import Exit
from inferd.service.systemd import Systemd
from inferd.service.unit import ServiceError
from tests.cli.conftest import tool
from tests.cli.tool import Tool

__all__ = ["tool"]

RECORDER = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
  *{fails}*) echo "Failed to connect to bus: No medium found" >&2; exit 1;;
  *show*) for line in LoadState=loaded ActiveState={state} SubState=running 'StatusText=m: ready' MainPID=7 \\
    NRestarts=2 Result=success; do echo "$line"; done;;
esac
"""


class Machine:
    """A command with a systemctl of its own."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool = tool
        self.bin = folder / "bin"
        self.log = folder / "calls"
        self.unit = tool.home / "config" / "systemd" / "user" / "inferd.service"
        self.script()

    def script(self, fails: str = "nothing-fails", state: str = "active") -> None:
        self.bin.mkdir(exist_ok=True)
        program = self.bin / "systemctl"
        program.write_text(RECORDER.format(log=self.log, fails=fails, state=state))
        program.chmod(0o755)

    def __call__(self, *arguments: str, **options: object):
        return self.tool(*arguments, env={"PATH": f"{self.bin}:/usr/bin:/bin"}, **options)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tool: Tool, tmp_path: Path) -> Machine:
    return Machine(tool, tmp_path)


def test_install_status_uninstall(machine: Machine) -> None:
    ran = machine("--set", "log.level=debug", "service", "install", "--user")
    assert ran.code == 0, ran.err
    assert "enable-linger" in ran.err
    text = machine.unit.read_text()
    assert "--set log.level=debug serve\n" in text
    assert machine.calls[1:] == [
        "--user --no-pager daemon-reload",
        "--user --no-pager enable inferd.service",
        "--user --no-pager restart inferd.service",
    ]
    assert machine.unit.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in machine.unit.parent.iterdir()] == ["inferd.service"]

    shown = machine("service", "status", "--user")
    assert shown.code == 0
    assert "active (running)" in shown.out
    assert "says: m: ready" in shown.out
    assert json.loads(machine("service", "status", "--user", "--json").out)["NRestarts"] == "2"
    machine.script(state="failed")
    assert machine("service", "status", "--user").code == Exit.NOT_RUNNING

    machine.log.unlink()
    assert machine("service", "uninstall", "--user").code == 0
    assert not machine.unit.exists()
    assert machine.calls == ["--user --no-pager disable --now inferd.service", "--user --no-pager daemon-reload"]
    again = machine("service", "uninstall", "--user")
    assert (again.code, again.err.count("\n")) == (1, 1)
    assert "not installed" in again.err


def test_printing_changes_nothing(machine: Machine) -> None:
    for scope in ("--user", "--system"):
        ran = machine("service", "install", scope, "--print")
        assert ran.code == 0
        assert "Type=notify" in ran.out
    assert machine.calls == []
    assert not machine.unit.exists()


def test_without_starting(machine: Machine) -> None:
    assert machine("service", "install", "--user", "--no-start").code == 0
    assert not any("restart" in call for call in machine.calls)


def test_what_systemd_refuses_is_one_line(machine: Machine) -> None:
    machine.script(fails="daemon-reload")
    ran = machine("service", "install", "--user")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "No medium found" in ran.err
    (machine.bin / "systemctl").unlink()
    ran = machine.tool("service", "install", "--user", env={"PATH": str(machine.bin)})
    assert ran.code == 1
    assert "inferd serve" in ran.err


def test_a_start_that_fails_says_what_the_daemon_said(machine: Machine) -> None:
    machine.script(fails="restart", state="activating")
    ran = machine("service", "install", "--user")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "is installed, but did not start: m: ready" in ran.err
    assert machine.unit.exists()


def test_a_unit_of_somebody_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inferd.service").write_text("[Service]\nExecStart=/usr/local/bin/mine\n")
    for call in (lambda: Systemd("user", tmp_path).install("x", start=False), Systemd("user", tmp_path).uninstall):
        with pytest.raises(ServiceError, match="not written by inferd"):
            call()
    assert "mine" in (tmp_path / "inferd.service").read_text()
