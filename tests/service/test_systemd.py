"""The user service under a real systemd, which runs in namespaces of its own for this test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_llama

LIFE = Path(__file__).with_name("life.py")
SYSTEMD = Path("/lib/systemd/systemd")
NAMESPACES = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
# What systemd looks for: that the system was booted with it, a writable cgroup tree, a folder for its sockets.
STAGE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mount -t cgroup2 none /sys/fs/cgroup
export XDG_RUNTIME_DIR=/run/user
mkdir -m 700 $XDG_RUNTIME_DIR
"""
START = (
    STAGE
    + """
/lib/systemd/systemd --user >&2 &
until systemctl --user is-system-running >/dev/null 2>&1; do sleep 0.1; done
exec "$@"
"""
)


def can_stage() -> bool:
    if os.geteuid() != 0 or not SYSTEMD.exists() or not shutil.which("unshare"):
        return False
    done = subprocess.run([*NAMESPACES, "sh", "-c", STAGE], capture_output=True, check=False, timeout=30)
    return done.returncode == 0


pytestmark = [
    pytest.mark.full,
    pytest.mark.daemon,
    pytest.mark.skipif(not can_stage(), reason="needs root, namespaces, cgroup2 and systemd"),
]


def test_a_life_under_systemd(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "tiny")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "INFERD_", "CONFIGURATION_"))}
    done = subprocess.run(
        [*NAMESPACES, "sh", "-c", START, "sh", sys.executable, str(LIFE), str(tmp_path / "tiny")],
        env=env | {"HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0
    seen = json.loads(done.stdout)
    assert seen["installed"]["code"] == 0, seen
    assert seen["running"]["ActiveState"] == "active"
    assert seen["running"]["StatusText"] == "tiny: ready"
    assert seen["answer"]["code"] == 0
    assert seen["engine killed"]["MainPID"] == seen["running"]["MainPID"]  # the daemon survives its engine
    assert seen["daemon killed"]["NRestarts"] == "1"
    assert seen["daemon killed"]["MainPID"] != seen["running"]["MainPID"]
    assert seen["hung"]["NRestarts"] == "2"  # its watchdog was not fed
    assert seen["uninstalled"]["code"] == 0
    assert seen["left"] == []
    assert seen["refused"]["code"] == 1
    assert "one sequence of" in seen["refused"]["err"]
