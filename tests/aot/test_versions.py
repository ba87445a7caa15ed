"""The same with the other Triton that a supported torch brings; `make test-full` puts it beside the installed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from inferd_kernels.triton.tiling import ARCHITECTURES, interpreted

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.6.0", "3.7.1")
"""What torch 2.11 to 2.13 are paired with."""


@pytest.mark.full
@pytest.mark.skipif(interpreted(), reason="the interpreter compiles nothing")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cc", ARCHITECTURES, ids="sm_{}".format)
@pytest.mark.parametrize("version", [version for version in VERSIONS if version != triton.__version__])
def test_every_configuration_with_another_triton(version: str, cc: int) -> None:
    """One architecture a process: Triton 3.6 converts fp8 as the first architecture of its process does."""
    folder = ROOT / f".venv/triton-{version}"
    assert (folder / "triton").is_dir(), f"no Triton {version}: make .venv/triton-{version}"
    paths = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "pytest", "-v", "-n0", "-m", "full or not full", "-k", f"sm_{cc}"]
    done = subprocess.run(
        [*command, str(ROOT / "tests/aot/test_compile.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"triton {version}" in done.stdout
    assert " passed" in done.stdout
