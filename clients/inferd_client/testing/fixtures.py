"""Pytest fixtures of the distribution, found by pytest through its entry point; imports nothing heavy.

    def test_my_program(fake_inferd):
        fake_inferd.script(reply="42")
        assert my_program(fake_inferd.runtime) == "42"

Mark a test `@pytest.mark.fake_inferd(reply="42")` to start with a script at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .daemon import FakeDaemon


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fake_inferd(**script): how the fixture fake_inferd answers and fails")


@pytest.fixture
def fake_inferd(request: pytest.FixtureRequest) -> Iterator[FakeDaemon]:
    """Run a fake daemon for one test; see FakeDaemon for what it can do."""
    from .daemon import FakeDaemon

    marker = request.node.get_closest_marker("fake_inferd")
    with FakeDaemon(marker.kwargs if marker else None) as daemon:
        yield daemon
