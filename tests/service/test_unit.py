"""The unit files: accepted by systemd itself, hardened, and with the command of this installation."""

from __future__ import annotations

import grp
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from inferd.service.unit import ServiceError, check_reachable, own_command, quote, render
from tests.service.manager import options

ROOT = Path(__file__).parents[2]
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
SCOPES = ("user", "system")


def analyze(*arguments: str, runtime: Path) -> subprocess.CompletedProcess[str]:
    assert ANALYZE
    runtime.mkdir(mode=0o700, exist_ok=True)
    env = {"XDG_RUNTIME_DIR": str(runtime), "PATH": "/usr/bin:/bin", "SYSTEMD_PAGER": "cat", "LC_ALL": "C"}
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, check=False, env=env, timeout=60)


@needs_systemd
@pytest.mark.parametrize("scope", SCOPES)
def test_systemd_finds_no_fault(scope: str, tmp_path: Path) -> None:
    unit = tmp_path / "inferd.service"
    unit.write_text(render(scope, own_command()))
    done = analyze("verify", "--man=no", f"--{scope}", str(unit), runtime=tmp_path / "run")
    assert done.returncode == 0, done.stderr
    newer = "Unknown key name 'Restart(Steps|MaxDelaySec)'|Unknown key 'Restart(Steps|MaxDelaySec)'"  # systemd 254
    assert [line for line in done.stderr.splitlines() if "inferd" in line and not re.search(newer, line)] == []


@needs_systemd
def test_a_fault_would_be_found(tmp_path: Path) -> None:
    unit = tmp_path / "inferd.service"
    unit.write_text(render("system", ["/no/such/command"]) + "\n[Service]\nProtectHome=perhaps\n")
    done = analyze("verify", "--man=no", str(unit), runtime=tmp_path / "run")
    assert done.returncode != 0 or "perhaps" in done.stderr


@needs_systemd
def test_the_system_service_is_little_exposed(tmp_path: Path) -> None:
    """systemd's own score: 0 is least exposed, 10 most; it calls up to 2.5 OK."""
    unit = tmp_path / "inferd.service"
    unit.write_text(render("system", own_command()))
    done = analyze("security", "--offline=true", "--threshold=25", str(unit), runtime=tmp_path / "run")
    assert done.returncode == 0, done.stdout[-2000:]
    loose = analyze("security", "--offline=true", "--threshold=10", str(unit), runtime=tmp_path / "run")
    assert loose.returncode != 0


@pytest.mark.parametrize("scope", SCOPES)
def test_what_a_daemon_of_ours_needs_of_its_unit(scope: str) -> None:
    found = options(render(scope, ["/opt/inferd/bin/inferd", "serve"]))
    assert found["Type"] == ["notify"]
    assert found["NotifyAccess"] == ["main"]
    assert found["ExecStart"] == ["/opt/inferd/bin/inferd serve"]
    assert found["Restart"] == ["on-failure"]
    assert found["RestartMaxDelaySec"] == ["120"]
    assert found["RestartPreventExitStatus"] == ["66 78"]
    assert found["RuntimeDirectory"] == ["inferd"]
    assert found["RuntimeDirectoryMode"] == ["0700"]
    assert "MemoryDenyWriteExecute" not in found  # torch, Triton and ctypes compile at run time
    assert float(found["WatchdogSec"][0]) > 60  # the daemon replaces a stalled engine first


def test_the_system_service_may_use_gpus_and_no_other_device() -> None:
    found = options(render("system", ["/usr/bin/inferd", "serve"]))
    assert found["DevicePolicy"] == ["closed"]
    assert {"char-nvidia* rw", "char-drm rw", "char-kfd rw"} <= set(found["DeviceAllow"])
    assert found["PrivateDevices"] == ["no"]


def test_groups_that_the_machine_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a group that is absent systemd starts nothing (exit code 216)."""
    there = [grp.struct_group((name, "x", 1, [])) for name in ("video", "wheel")]
    monkeypatch.setattr(grp, "getgrall", lambda: there)
    assert options(render("system", ["/x"]))["SupplementaryGroups"] == ["video"]
    monkeypatch.setattr(grp, "getgrall", list)
    assert "SupplementaryGroups" not in options(render("system", ["/x"]))


@pytest.mark.parametrize("name", ["inferd.service", "inferd-user.service"])
def test_the_example_is_the_unit_that_is_installed(name: str) -> None:
    assert (ROOT / "configs" / name).read_text() == files("inferd.service").joinpath(name).read_text()


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/usr/bin/inferd", "/usr/bin/inferd"),
        ("log.level=debug", "log.level=debug"),
        ("/a b/%h$HOME", '"/a b/%%h$$HOME"'),
        ('say "x\\y"', '"say \\"x\\\\y\\""'),
        ("", '""'),
        ("a;b", '"a;b"'),
    ],
)
def test_arguments_are_quoted_for_systemd(word: str, written: str) -> None:
    assert quote(word) == written


def test_a_command_that_a_service_cannot_reach_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"/home/me/.venv/bin/inferd is hidden.*/opt/inferd.*--user"):
        check_reachable(Path("/home/me/.venv/bin/inferd"))
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "inferd").touch(mode=0o755)
    closed.chmod(0o700)
    with pytest.raises(ServiceError, match="closed to other users"):
        check_reachable(closed / "inferd")


def test_the_command_of_this_installation_runs() -> None:
    done = subprocess.run([*own_command(), "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("inferd")
    assert Path(own_command()[0]).parent == Path(sys.executable).parent
