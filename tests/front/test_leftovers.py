"""Folders of ranks that a killed worker or daemon leaves are removed; those of living workers are not."""

from __future__ import annotations

import os
from pathlib import Path

from tests.front.harness import KILL, daemon, eventually, launch, worker_pid


def make(runtime: Path, name: str) -> Path:
    folder = runtime / name
    folder.mkdir()
    (folder / "1").touch()
    return folder


def test_folders_of_a_killed_worker_go_with_it() -> None:
    with daemon() as running:
        client = running.client()
        pid = worker_pid(client)
        own, other = make(running.runtime, f"r{pid}"), make(running.runtime, f"r{pid}0")
        os.kill(pid, KILL)
        eventually(lambda: not own.exists())
        assert worker_pid(client) != pid
        assert other.exists()


def test_a_daemon_removes_what_a_killed_one_left() -> None:
    with daemon() as running:
        left = make(running.runtime, "r1")
        running.signal(KILL)
        running.wait()
        second = launch(running.runtime)
        try:
            assert not left.exists()
        finally:
            second.process.kill()
            second.process.wait()
