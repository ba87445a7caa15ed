"""The whole picture at three sizes, against stored ones. `python -m tests.tui.screenshot --stored` makes them anew."""

from __future__ import annotations

import asyncio

import pytest

from tests.tui.screenshot import DOCS, SIZE, TITLE, shoot
from tests.tui.shots import SIZES, stored


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_dashboard_looks_as_stored(width: int, height: int) -> None:
    assert asyncio.run(shoot(width, height, "inferd top")) == stored(width, height).read_text()


def test_the_picture_of_the_readme_is_that_of_this_monitor() -> None:
    assert asyncio.run(shoot(*SIZE, TITLE)) == DOCS.read_text()
