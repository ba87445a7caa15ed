"""The kernels for another architecture: they compile, and an emulator computes with them what this machine does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from inferd_kernels.cpu import build

CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
PROGRAM = Path(__file__).with_name("other_machine.c")


def run(folder: Path, library: Path, compiler: str, *before: str) -> list[float]:
    """Multiply and attend in `PROGRAM`; return what it prints."""
    program = folder / f"program-{compiler}"
    command = [compiler, "-O1", "-std=gnu11", f"-I{build.SOURCES}", str(PROGRAM), str(library)]
    subprocess.run([*command, "-pthread", "-lm", f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True)
    out = subprocess.run([*before, str(program)], check=True, capture_output=True, text=True, timeout=100).stdout
    return [float(value) for value in out.split()]


@pytest.mark.full
@pytest.mark.skipif(not shutil.which(CROSS) or not shutil.which(EMULATOR), reason=f"needs {CROSS} and {EMULATOR}")
def test_aarch64_computes_what_this_machine_does(tmp_path: Path) -> None:
    here, there = tmp_path / "libhere.so", tmp_path / "libthere.so"
    build.compile_library(here)
    build.compile_library(there, compiler=CROSS, machine="aarch64")
    want = run(tmp_path, here, "cc")
    got = run(tmp_path, there, CROSS, EMULATOR, "-L", "/usr/aarch64-linux-gnu")
    assert len(want) == 2 * 40
    assert got == pytest.approx(want, rel=1e-5, abs=1e-5)
    assert want[:40] == pytest.approx(want[40:], rel=2e-2, abs=0.5)
