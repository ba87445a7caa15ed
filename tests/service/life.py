"""Played inside the namespaces of test_systemd: what a user does to a service, and what is done to the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def play(model: str) -> dict[str, Any]:
    """Do it all, and return what was seen."""

    def inferd(*arguments: str) -> dict[str, Any]:
        ran = subprocess.run(
            [sys.executable, "-m", "inferd.cli.main", *arguments], capture_output=True, text=True, check=False
        )
        return {"code": ran.returncode, "out": ran.stdout, "err": ran.stderr}

    def state() -> dict[str, str]:
        return json.loads(inferd("service", "status", "--user", "--json")["out"])

    def until_active(restarts: str) -> dict[str, str]:
        end = time.monotonic() + 60
        while (found := state())["ActiveState"] != "active" or found["NRestarts"] != restarts:
            assert time.monotonic() < end, found
            time.sleep(0.2)
        return found

    quick = Path.home() / ".config/systemd/user/inferd.service.d/quick.conf"
    quick.parent.mkdir(parents=True)
    quick.write_text("[Service]\nRestartSec=0.1\nWatchdogSec=3\n")
    settings = [f"models.tiny.path={model}", "default_model=tiny", "engine.max_context=64"]
    options = [word for setting in settings for word in ("--set", setting)]
    seen: dict[str, Any] = {"installed": inferd(*options, "service", "install", "--user")}
    seen["running"] = first = state()
    seen["answer"] = inferd("run", "--raw", "--max-tokens", "2", "ab")
    engine = json.loads(inferd("status", "--json")["out"])["models"][0]["pid"]
    os.kill(engine, signal.SIGKILL)
    seen["engine again"] = inferd("run", "--raw", "--max-tokens", "2", "ab")
    seen["engine killed"] = state()
    os.kill(int(first["MainPID"]), signal.SIGKILL)
    seen["daemon killed"] = until_active("1")
    os.kill(int(seen["daemon killed"]["MainPID"]), signal.SIGSTOP)
    seen["hung"] = until_active("2")
    seen["uninstalled"] = inferd("service", "uninstall", "--user")
    seen["left"] = [path.name for path in quick.parents[1].glob("*.service")]
    seen["refused"] = inferd(*options, "--set", "engine.kv_bytes=1", "service", "install", "--user")
    return seen


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1])))
