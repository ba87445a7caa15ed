"""The monitor, headless: keys, pause, a lost daemon, small terminals, and how little it repaints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from inferd_client.errors import ConnectionLost
from inferd_client.protocol import ModelEvent, StatusReply
from inferd_tui.app import Monitor
from inferd_tui.glyphs import ASCII
from inferd_tui.messages import Lost, Snapshot
from inferd_tui.panels.panel import Panel
from inferd_tui.panels.requests import Requests
from inferd_tui.screens.confirm import Confirm
from inferd_tui.screens.help import Help
from inferd_tui.screens.models import Models
from inferd_tui.screens.plugins import Plugins
from tests.tui.sample import SampleSource, edited, traffic
from tests.tui.shots import feed, monitor, text

Scenario = Callable[[Monitor, Pilot[None]], Awaitable[None]]
SNAPSHOTS = traffic(6)


def play(scenario: Scenario, *, size: tuple[int, int] = (100, 30), app: Monitor | None = None) -> None:
    """Run a scenario over a monitor that has shown some traffic."""

    async def run() -> None:
        shown = app or monitor(SampleSource())
        async with shown.run_test(size=size) as pilot:
            await feed(shown, pilot, SNAPSHOTS)
            await scenario(shown, pilot)

    asyncio.run(run())


async def until(app: Monitor, wanted: str) -> None:
    """Wait until the screen shows a text."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if wanted in "\n".join(text(app)):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{wanted!r} is not in:\n" + "\n".join(text(app)))


def commands(app: Monitor) -> list[tuple[str, str]]:
    assert isinstance(app.source, SampleSource)
    return app.source.commands


def test_news_come_through_the_thread_and_names_are_no_markup() -> None:
    source = SampleSource()
    status = edited(SNAPSHOTS[0], version="[bold]9\x1b[31m", warnings=("[red]w",))
    source.put(ModelEvent(seq=0, name="[b]m", state="failed", detail="no shard"))
    source.put(status)

    async def run() -> None:
        app = Monitor(source)
        async with app.run_test(size=(100, 30)) as pilot:
            await until(app, "inferd [bold]9␛[31m serving")
            await until(app, "! [red]w")
            source.put(edited(status, seq=2, instance="other", version="10"))
            await until(app, "inferd 10")
            await pilot.resize_terminal(100, 40)
            await until(app, "model [b]m: failed (no shard)")
            await until(app, "the daemon was started anew")

    asyncio.run(run())


def test_pause_keeps_the_picture() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        before = text(app)
        assert before[0].startswith("PAUSED")
        app.on_snapshot(Snapshot(edited(SNAPSHOTS[-1], version="7.7", uptime_s=9000.0)))
        app._redraw_if_new()
        await pilot.resize_terminal(101, 30)
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert text(app) == before
        await pilot.press("p")
        await until(app, "inferd 7.7")

    play(scenario)


def test_a_daemon_that_goes_and_comes_back() -> None:
    now = [0.0]
    app = Monitor(SampleSource(), time_text=lambda: "12:00:00", clock=lambda: now[0])

    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        now[0] = 2.0
        app.on_lost(Lost("gone"))
        app.redraw()
        await pilot.pause()
        assert "NO NEWS" not in "\n".join(text(app))
        now[0] = 20.0
        app.on_lost(Lost("gone"))
        app.redraw()
        await until(app, "! NO NEWS: no snapshot for 20 s; figures are old")
        await until(app, "no news of the daemon: gone")
        app.on_snapshot(Snapshot(edited(SNAPSHOTS[-1], instance="next", version="2", uptime_s=0.1)))
        await until(app, "inferd 2")
        assert "NO NEWS" not in "\n".join(text(app))
        await until(app, "started anew")

    play(scenario, size=(100, 40), app=app)


def test_cancel_asks_first_and_takes_the_chosen_row() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await pilot.press("down", "c")
        assert isinstance(app.screen, Confirm)
        await until(app, "Cancel request req-1001 of agents#2?")
        await pilot.press("n")
        assert (commands(app), len(app.screen_stack)) == ([], 1)
        await pilot.press("c", "y")
        await until(app, "cancel req-1001: cancel was done")
        assert commands(app) == [("cancel", "req-1001")]

    play(scenario)


def test_the_models_screen_loads_and_unloads() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await pilot.press("m")
        await until(app, "qwen2.5-0.5b")
        await until(app, "max_context = 8,192 (model)")
        await until(app, "config.json:")
        await pilot.press("down", "l", "up", "u", "y", "escape")
        assert len(app.screen_stack) == 1
        await until(app, "unload smollm2-135m: unload was done")
        await until(app, "load qwen2.5-0.5b: load was done")
        assert sorted(commands(app)) == [("load", "qwen2.5-0.5b"), ("unload", "smollm2-135m")]

    play(scenario, size=(100, 40))


def test_a_refused_command_says_why() -> None:
    class Refusing(SampleSource):
        def cancel(self, request: str) -> str:
            raise ConnectionLost("the daemon is away")

    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await pilot.press("c", "y")
        await until(app, "cancel req-1000: the daemon is away")

    play(scenario, size=(100, 40), app=monitor(Refusing()))


def test_the_plugins_screen_says_why() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await pilot.press("g")
        await until(app, "odd-drafts")
        await pilot.press("down", "down")
        await until(app, "line 1")
        assert isinstance(app.screen, Plugins)

    play(scenario)


def test_help_names_every_key_and_screens_replace_each_other() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(app, "WHY A REQUEST WAITS")
        assert isinstance(app.screen, Help)
        shown = "\n".join(text(app))
        for binding in Monitor.BINDINGS:
            assert f"  {getattr(binding, 'key_display', None) or getattr(binding, 'key', '')} " in shown
        await pilot.press("m")
        assert isinstance(app.screen, Models)
        assert len(app.screen_stack) == 2
        await pilot.press("g", "escape")
        assert len(app.screen_stack) == 1

    play(scenario, size=(110, 50))


def test_the_theme_turns_light_and_back() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        assert app.current_theme.dark
        await pilot.press("t")
        assert not app.current_theme.dark
        await pilot.press("t")
        assert app.current_theme.dark

    play(scenario)
    assert not monitor(SampleSource(), light=True).current_theme.dark


def test_every_size_from_one_cell_up_and_back() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        for size in ((1, 1), (2, 40), (200, 2), (10, 10), (71, 20), (159, 33), (1, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await feed(app, pilot, SNAPSHOTS[-1:])
            assert len(text(app)) == size[1]
        for wanted in ("─memory", "─batch", "─latency", "─throughput", "─requests", "─log", "c Cancel", "? Help"):
            assert wanted in "\n".join(text(app)), wanted

    play(scenario, size=(1, 1))


def test_ascii_draws_nothing_else() -> None:
    app = monitor(SampleSource(), glyphs=ASCII)

    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        odd = edited(SNAPSHOTS[-1], warnings=("größer\x07",), default_model="ü")
        for keys in ((), ("c",), ("n", "m"), ("l",), ("g",), ("question_mark",)):
            await pilot.press(*keys)
            await feed(app, pilot, [odd])
            shown = "\n".join(text(app))
            assert {c for c in shown if not c.isascii()} == set(), keys

    play(scenario, app=app)


def test_unknown_reads_na_and_an_idle_daemon_shows() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        await feed(app, pilot, [StatusReply(version="1", instance="i")])
        shown = [line.rstrip() for line in text(app)]
        assert shown[1] == "no model is loaded"
        joined = "\n".join(shown)
        for wanted in ("memory n/a", "running n/a", "n/a/n/a", "MFU n/a", "power n/a", "cost n/a", "drafts       n/a"):
            assert wanted in joined, wanted
        assert joined.count("     n/a      n/a      n/a") == 7

    play(scenario)


def test_a_flood_of_snapshots_redraws_twice_a_second_at_most() -> None:
    source = SampleSource()

    async def run() -> None:
        app = Monitor(source)
        async with app.run_test(size=(100, 30)):
            start = time.monotonic()
            for status in traffic(100):
                source.put(status)
                await asyncio.sleep(0.01)
            assert 2 <= app.num_redraws <= 2 + 2 * (time.monotonic() - start)

    asyncio.run(run())


def test_only_what_changed_is_painted() -> None:
    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        table = app.screen.query_one(Requests)
        panels = list(app.screen.query(Panel))
        painted, changed = sum(p.num_painted for p in panels), table.num_changed
        await feed(app, pilot, [edited(SNAPSHOTS[-1], seq=99)])
        assert (sum(p.num_painted for p in panels), table.num_changed) == (painted, changed)
        first, *others = SNAPSHOTS[-1].requests
        await feed(app, pilot, [edited(SNAPSHOTS[-1], requests=(edited(first, output_tokens=77), *others))])
        assert (sum(p.num_painted for p in panels), table.num_changed) == (painted, changed + 1)
        await feed(app, pilot, [edited(SNAPSHOTS[-1], clients=9, requests=tuple(others))])
        assert sum(p.num_painted for p in panels) == painted + 1
        assert (table.row_count, table.num_changed) == (len(others), changed + 1)

    play(scenario)


TIMES = [6, pytest.param(50, marks=pytest.mark.full)]


@pytest.mark.parametrize("times", TIMES)
def test_screens_open_and_close_while_news_come(times: int) -> None:
    """In and out of each screen with updates between: nothing touches what is gone."""

    async def scenario(app: Monitor, pilot: Pilot[None]) -> None:
        assert isinstance(app.source, SampleSource)
        source = app.source
        for i in range(times):
            source.put(edited(SNAPSHOTS[i % 6], seq=i, instance=str(i // 9)))
            source.put(ModelEvent(seq=i, name="m", state="ready"))
            if i % 7 == 0:
                source.put(None)
            await app.action_open(("models", "plugins", "help")[i % 3])
            app.redraw()
            await asyncio.sleep(0.004 * (i % 3))
            await app.pop_screen()
            app.redraw()
        await pilot.pause()
        assert len(app.screen_stack) == 1

    play(scenario, size=(40, 10))


@pytest.mark.parametrize("times", TIMES)
def test_it_ends_in_the_middle_of_updates(times: int) -> None:
    async def run() -> None:
        for i in range(times):
            source = SampleSource(*SNAPSHOTS)
            app = Monitor(source)
            async with app.run_test(size=(30, 6)):
                if i % 2:
                    await app.action_open(("models", "plugins", "help")[i % 3])
                source.put(SNAPSHOTS[0])
                app.exit()
            assert not app.is_running

    asyncio.run(run())
