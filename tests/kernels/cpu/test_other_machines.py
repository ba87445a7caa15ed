"""The kernels for another architecture: they compile, and every tier computes in an emulator what this machine does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from inferd_kernels.cpu import build
from inferd_kernels.cpu.library import why_missing

CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
EMULATED = (EMULATOR, "-L", "/usr/aarch64-linux-gnu")
SOURCE = Path(__file__).with_name("other_machine.c")

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),  # two tiers and plain C are compiled, then emulated
    pytest.mark.skipif(not shutil.which(CROSS) or not shutil.which(EMULATOR), reason=f"needs {CROSS} and {EMULATOR}"),
]

Case = tuple[str, list[float]]


def compile_program(folder: Path, library: Path, compiler: str) -> str:
    made = folder / f"program-{compiler}"
    command = [compiler, "-O1", "-std=gnu11", f"-I{build.SOURCES}", str(SOURCE), str(library)]
    subprocess.run([*command, "-pthread", "-lm", f"-Wl,-rpath,{library.parent}", "-o", str(made)], check=True)
    return str(made)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cases(*command: str) -> list[Case]:
    """Return what the program prints: a name and numbers a line."""
    lines = [line.split() for line in output(*command).splitlines()]
    return [(name, [float(number) for number in numbers]) for name, *numbers in lines]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program and its library for aarch64."""
    folder = tmp_path_factory.mktemp("aarch64")
    library = build.compile_library(folder / "libinferd_cpu.so", compiler=CROSS, machine="aarch64")
    return compile_program(folder, library, CROSS)


@pytest.mark.skipif(bool(why_missing()), reason="the CPU kernels are not built")
def test_aarch64_computes_what_this_machine_does(tmp_path: Path, foreign: str) -> None:
    """In each tier, where the program also sees that steps of other shapes give the same bits."""
    want = cases(compile_program(tmp_path, build.LIBRARY, "cc"), "scalar")
    assert len(want) > 90
    got = {tier: cases(*EMULATED, foreign, tier) for tier in build.tiers("aarch64")}
    for tier, found in got.items():
        for (name, here), (other, there) in zip(want, found, strict=True):
            assert name == other
            np.testing.assert_allclose(
                there, here, rtol=0, atol=1e-5 * np.nanmax(np.abs(here)), err_msg=f"{tier} {name}"
            )
    assert str(got["neon"]) == str(got["neondot"])  # NaN equals NaN


@pytest.mark.parametrize(("cpu", "tier"), [("max", "neondot"), ("cortex-a53", "neon")])
def test_aarch64_uses_what_the_cpu_has(foreign: str, cpu: str, tier: str) -> None:
    assert output(*EMULATED, "-cpu", cpu, foreign).strip() == tier
