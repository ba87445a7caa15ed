"""What all tests share: one thread for torch, no settings of this machine, the default model."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.smollm2 import smollm2_path

# Before anything imports torch, and inherited by every process a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

# A run in the background of a shell is started with SIGINT ignored, and so would be every process it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A machine that pauses makes any example slow.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_this_machine() -> Iterator[None]:
    """Point the system's and the user's config folders at an empty one, and what daemons keep at another."""
    with (
        tempfile.TemporaryDirectory() as empty,
        tempfile.TemporaryDirectory() as state,
        tempfile.TemporaryDirectory() as cache,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("CONFIGURATION_DIRECTORY", empty)
        patch.setenv("XDG_CONFIG_HOME", empty)
        patch.setenv("XDG_STATE_HOME", state)
        patch.setenv("XDG_CACHE_HOME", cache)
        patch.delenv("INFERD_CONFIG", raising=False)
        patch.delenv("INFERD_LOG", raising=False)
        yield


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Undo what a test before this one set; torch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture
def default_model() -> Path:
    """The GGUF file of the default model; skips where it cannot be had."""
    return smollm2_path()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, which `tmp_path` may not."""
    with tempfile.TemporaryDirectory(prefix="infd") as folder:
        yield Path(folder)
