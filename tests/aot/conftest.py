"""A cache folder of its own: what was compiled once is not compiled again."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton


def pytest_report_header() -> str:
    return f"triton {triton.__version__}"


@pytest.fixture(autouse=True, scope="session")
def _cache_of_compiled_kernels() -> Iterator[None]:
    folder = Path(tempfile.gettempdir()) / f"inferd-aot-{getpass.getuser()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        yield
