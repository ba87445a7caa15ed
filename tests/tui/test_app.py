"""The monitor, headless: it shows snapshots, pauses, survives a lost daemon, and ends at once."""

from __future__ import annotations

import asyncio
import threading

from textual.widgets import Static

from inferd_client.errors import ConnectionLost
from inferd_client.protocol import StatusReply
from inferd_tui.app import Monitor


class ScriptedFeed:
    """Hands out what the test puts in; one None stands for a lost connection."""

    dropped = 0

    def __init__(self) -> None:
        self._items: list[StatusReply | None] = []
        self._there = threading.Condition()
        self._closed = False

    def put(self, item: StatusReply | None) -> None:
        with self._there:
            self._items.append(item)
            self._there.notify()

    def close(self) -> None:
        with self._there:
            self._closed = True
            self._there.notify()

    def next(self) -> StatusReply:
        with self._there:
            self._there.wait_for(lambda: self._items or self._closed)
            if not self._items:
                raise EOFError
            item = self._items.pop(0)
        if item is None:
            raise ConnectionLost("the daemon is away")
        return item


async def shown(app: Monitor, widget: str, text: str) -> None:
    """Wait until a widget shows a text."""
    for _ in range(200):
        if text in str(app.query_one(widget, Static).render()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{text!r} is not in {app.query_one(widget, Static).render()!r}")


def test_snapshots_pause_and_a_lost_daemon() -> None:
    async def scenario() -> None:
        feed = ScriptedFeed()
        app = Monitor(feed)
        try:
            async with app.run_test(size=(80, 24)) as pilot:
                await shown(app, "#view", "waiting")
                feed.put(StatusReply(version="1", warnings=("[bold]not markup",)))
                await shown(app, "#view", "inferd 1: serving")
                await shown(app, "#view", "[bold]not markup")
                feed.put(None)
                await shown(app, "#note", "the daemon is away")
                feed.put(StatusReply(version="2"))
                await shown(app, "#view", "inferd 2")
                await shown(app, "#note", "")
                await pilot.press("p")
                feed.put(StatusReply(version="3"))
                await shown(app, "#note", "paused")
                await pilot.press("p")
                feed.put(StatusReply(version="4"))
                await shown(app, "#view", "inferd 4")
                feed.close()
                await pilot.press("q")
        finally:
            feed.close()

    asyncio.run(scenario())


def test_it_fits_a_tiny_terminal() -> None:
    async def scenario() -> None:
        feed = ScriptedFeed()
        app = Monitor(feed)
        try:
            async with app.run_test(size=(20, 5)) as pilot:
                feed.put(StatusReply(version="1"))
                await shown(app, "#view", "inferd 1")
                feed.close()
                await pilot.press("q")
        finally:
            feed.close()

    asyncio.run(scenario())
