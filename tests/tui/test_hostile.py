"""No text that comes from models, plugins or other clients reaches the terminal as anything but visible characters."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import msgspec

from inferd_client.protocol import ModelEvent
from inferd_tui.messages import ModelChanged, Snapshot
from tests.tui.sample import SampleSource, traffic
from tests.tui.shots import feed, monitor, text

EVIL = "\x1b]0;t\x07\x1b[2J\x9b31m\x00\r\u202e"
SHOWN = "␛]0;t␇␛[2J"
FIXED = {"state", "instance", "source"}
"""Fields of which the protocol knows every value, or that are never shown."""


def spoil(value: Any, name: str = "") -> Any:
    """Put control characters into every text of a message."""
    if isinstance(value, str):
        return value if name in FIXED else EVIL + value
    if isinstance(value, msgspec.Struct):
        return type(value)(**{f: spoil(getattr(value, f), f) for f in value.__struct_fields__})
    if isinstance(value, (list, tuple)):
        return type(value)(spoil(v, name) for v in value)
    if isinstance(value, dict):
        return {k: spoil(v, k) for k, v in value.items()}
    return value


def is_harmless(char: str) -> bool:
    return unicodedata.category(char) not in {"Cc", "Cs"} and char not in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"


def test_every_screen() -> None:
    source = SampleSource()
    source.known_models = spoil(source.known_models)
    source.known_plugins = spoil(source.known_plugins)
    news = ModelEvent(seq=1, name=f"m{EVIL}", state="failed", detail=EVIL)

    async def run() -> None:
        app = monitor(source)
        async with app.run_test(size=(160, 50)) as pilot:
            await feed(app, pilot, [spoil(status) for status in traffic(4)])
            app.on_model_changed(ModelChanged(news))
            app.on_snapshot(Snapshot(spoil(traffic(1)[0])))
            app.redraw()
            for key in ("", "m", "down", "escape", "g", "down", "escape", "question_mark", "escape", "c"):
                if key:
                    await pilot.press(key)
                await pilot.pause()
                shown = "\n".join(text(app))
                bad = {repr(c) for c in shown.replace("\n", "") if not is_harmless(c)}
                assert not bad, f"after {key or 'the start'}: {bad}"
                if key in ("", "m", "g"):
                    assert SHOWN in shown, f"after {key or 'the start'} nothing hostile is on the screen"

    asyncio.run(run())
