"""A command with folders of its own for every test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tool import Tool


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    with tempfile.TemporaryDirectory(prefix="inferd-") as short:
        yield Tool(tmp_path, Path(short))
