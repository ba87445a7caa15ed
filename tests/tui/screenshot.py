"""Make docs/monitor.svg: `python -m tests.tui.screenshot`; `--stored` makes the pictures that tests compare with.

The monitor is the real one, the traffic is not: the picture is labelled as sample data.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from inferd_client.protocol import ModelEvent
from inferd_tui.messages import ModelChanged
from tests.tui.sample import SampleSource, traffic
from tests.tui.shots import SIZES, STORED, feed, monitor, picture, stored

SIZE = (120, 40)
DOCS = Path(__file__).parents[2] / "docs" / "monitor.svg"
TITLE = "inferd top (sample data)"


async def shoot(width: int, height: int, title: str) -> str:
    """Return the dashboard after a minute of sample traffic."""
    app = monitor(SampleSource())
    async with app.run_test(size=(width, height)) as pilot:
        for state, detail in (("loading", "reading weights"), ("ready", "")):
            app.on_model_changed(ModelChanged(ModelEvent(seq=0, name="smollm2-135m", state=state, detail=detail)))
        await feed(app, pilot, traffic())
        return picture(app, title)


def main(arguments: list[str]) -> None:
    if arguments == ["--stored"]:
        STORED.mkdir(exist_ok=True)
        for width, height in SIZES:
            stored(width, height).write_text(asyncio.run(shoot(width, height, "inferd top")))
    else:
        DOCS.write_text(asyncio.run(shoot(*SIZE, TITLE)))


if __name__ == "__main__":
    main(sys.argv[1:])
