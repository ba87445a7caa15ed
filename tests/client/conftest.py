"""Short runtime directories: a socket path has 107 bytes at most."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def runtime() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="inferd-") as folder:
        yield Path(folder)
