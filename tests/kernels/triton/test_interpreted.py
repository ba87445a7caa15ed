"""Run each file of `interpreted` in a process of its own, with a cache folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = FOLDER.parents[3]
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))


def run_interpreted(tmp_path: Path, *targets: str, full: bool = False) -> str:
    """Run pytest with the interpreter on; returns its output. Fails with it where a test fails."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    marks = "full or not full" if full else "not full"
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:randomly", "-n0", "-m", marks, *targets]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_files_are_found() -> None:
    assert len(FILES) >= 6


@pytest.mark.parametrize("name", FILES)
def test_kernels_in_the_interpreter(name: str, tmp_path: Path) -> None:
    assert " passed" in run_interpreted(tmp_path, str(FOLDER / name))


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FILES)
def test_whole_grids(name: str, tmp_path: Path) -> None:
    assert " passed" in run_interpreted(tmp_path, str(FOLDER / name), full=True)
