"""Waiting for answers: in vain, and where this process was paused while it waited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inferd_client import mailbox
from inferd_client.mailbox import AsyncMailbox, BlockingMailbox, WaitedInVain

FOREVER_S = 60.0


class Clock:
    """The time of the waits; the one with this number lasts much longer than it should, and then something happens."""

    def __init__(self, slow: int, then: Callable[[], Any] = lambda: None) -> None:
        self.now, self.calls, self.slow, self.then = 0.0, 0, slow, then

    def monotonic(self) -> float:
        self.calls += 1
        if self.calls == 2 * self.slow:  # each wait asks at its begin and at its end
            self.now += 1000.0
            self.then()
        return self.now


def patched(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(mailbox, "time", SimpleNamespace(monotonic=clock.monotonic))


def test_what_came_during_a_pause_is_still_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    box: BlockingMailbox[str] = BlockingMailbox()
    patched(monkeypatch, Clock(1, lambda: box._queue.put(mailbox.Arrival(0.0, "late"))))
    assert box.get(0.01).item == "late"


def test_after_a_pause_nothing_is_waited_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    box: BlockingMailbox[str] = BlockingMailbox()
    clock = Clock(1)
    patched(monkeypatch, clock)
    with pytest.raises(WaitedInVain):
        box.get(0.01)
    assert clock.calls == 4


def test_without_a_pause_the_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    box: BlockingMailbox[str] = BlockingMailbox()
    clock = Clock(9)
    patched(monkeypatch, clock)
    with pytest.raises(WaitedInVain):
        box.get(0.01)
    assert clock.calls == 2


def test_the_same_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        box: AsyncMailbox[str] = AsyncMailbox()
        patched(monkeypatch, Clock(1, lambda: box._items.append(mailbox.Arrival(0.0, "late"))))
        assert (await box.get(0.01)).item == "late"
        patched(monkeypatch, Clock(1))
        with pytest.raises(WaitedInVain):
            await box.get(0.01)
        patched(monkeypatch, Clock(9))
        with pytest.raises(WaitedInVain):
            await box.get(0.01)

    asyncio.run(asyncio.wait_for(main(), FOREVER_S))
