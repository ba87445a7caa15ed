"""What is sent to systemd, when it cannot take it and when there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.front.notify import STATUS_CHARS, Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "n"))
        bound.setblocking(False)
        yield bound


def told(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(65536).decode())
        except BlockingIOError:
            return found


def notifier(manager: socket.socket, **more: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.getsockname(), **more})


def test_ready_is_said_once_and_again_only_when_it_was_not_taken(tmp_path: Path) -> None:
    """A manager that cannot take it, for whatever reason, hears it later."""
    ours = Notifier({"NOTIFY_SOCKET": str(tmp_path / "late")})
    ours.ready(True)
    ours.status("busy")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as late:
        late.bind(str(tmp_path / "late"))
        late.setblocking(False)
        for _ in range(2):
            ours.ready(True)
            ours.status("busy")
        assert told(late) == ["READY=1", "STATUS=busy"]


def test_a_status_is_one_short_line(manager: socket.socket) -> None:
    notifier(manager).status("a\nREADY=1\x1b\0" + "x" * 5000)
    (line,) = told(manager)
    assert line.startswith("STATUS=a READY=1  xxx")
    assert len(line) == len("STATUS=") + STATUS_CHARS


def test_more_time_is_asked_for_until_ready(manager: socket.socket) -> None:
    ours = notifier(manager)
    ours.still_loading()
    ours.ready(False)
    ours.ready(True)
    ours.still_loading()
    assert told(manager) == ["EXTEND_TIMEOUT_USEC=15000000", "READY=1"]


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "4000000"}, 2.0),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_how_often_the_watchdog_is_due(
    manager: socket.socket, variables: dict[str, str], seconds: float | None
) -> None:
    assert notifier(manager, **variables).watchdog_s == seconds


def test_without_a_manager_nothing_happens() -> None:
    for environment in ({}, {"NOTIFY_SOCKET": "/no/such/socket"}):
        ours = Notifier(environment)
        ours.ready(True)
        ours.stopping(float("inf"))
    assert not Notifier({}).wanted
