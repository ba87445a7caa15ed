"""Compile the CPU kernels with the system's C compiler. Standard library only: the install hook runs this.

`python build.py` rebuilds in place (`make kernels`).
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
LIBRARY = HERE / "libinferd_cpu.so"

FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-pthread", "-fvisibility=default", "-ffp-contract=off", "-fno-math-errno")
"""No contraction: what is fused is written as such, so that every build rounds alike."""

AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (
    *AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vnni",
    "-mprfchw",
    "-mprefer-vector-width=512",
)
NEON = ("-DTIER_NEON",)
"""Every 64-bit Arm processor has it: the flag tells the tier from plain C."""


class CompileError(Exception):
    """The compiler is missing or failed; the text says which."""


def source_hash() -> str:
    """Hash the sources and the flags: what the library must have been made from."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def is_current() -> bool:
    """Say whether the library beside the sources was made from them (it holds their hash)."""
    return LIBRARY.exists() and source_hash().encode() in LIBRARY.read_bytes()


def tiers(machine: str) -> dict[str, tuple[str, ...]]:
    """Return the tiers of an architecture with their flags."""
    wide: dict[str, tuple[str, ...]] = {}
    if machine in ("x86_64", "amd64"):
        wide = {"avx2": AVX2, "avx512vnni": AVX512, "avx512bf16": (*AVX512, "-mavx512bf16")}
    elif machine in ("aarch64", "arm64"):
        wide = {"neon": NEON, "neondot": (*NEON, "-march=armv8.2-a+dotprod")}
    return {"scalar": (), **wide}


def compile_library(target: Path = LIBRARY, *, compiler: str = "cc", machine: str = "") -> Path:
    """Compile all tiers and link them into `target`. Raises CompileError."""
    found = shutil.which(compiler)
    if found is None:
        raise CompileError(f"no C compiler `{compiler}` found")
    units = [(path.name, (path.name,)) for path in sorted(SOURCES.glob("*.c")) if path.name != "tier.c"]
    jobs = [(f"{name}.o", name, (f'-DSOURCE_HASH="{source_hash()}"',)) for name, _ in units]
    jobs += [
        (f"{tier}.o", "tier.c", (f"-DTIER={tier}", *flags))
        for tier, flags in tiers((machine or platform.machine()).lower()).items()
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        objects = [str(Path(folder, name)) for name, _, _ in jobs]
        commands = [
            [found, *FLAGS, *flags, "-c", str(SOURCES / source), "-o", path]
            for path, (_, source, flags) in zip(objects, jobs, strict=True)
        ]
        list(pool.map(_run, commands))
        made = Path(folder, target.name)
        _run([found, "-shared", "-pthread", *objects, "-o", str(made)])
        # A rename replaces the file at once: a process that has the old one mapped keeps it.
        fresh = target.with_suffix(".new")
        shutil.copyfile(made, fresh)
        fresh.replace(target)
    return target


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise CompileError(f"{' '.join(command)}\n{result.stderr.strip()}")


if __name__ == "__main__":
    try:
        if "--if-stale" not in sys.argv or not is_current():
            print(f"built {compile_library()}")
    except CompileError as error:
        sys.exit(f"cannot build the CPU kernels: {error}")
