"""Run workers over a target until its inputs are done, and collect what was found."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.fuzz.worker import Current, make

MEMORY = Path("/dev/shm")
HANG_S = 120.0
"""Silence after which a worker counts as hung; a slow input is told by itself long before."""
MAX_DEATHS = 50


@dataclass
class Found:
    """What a target did with its inputs."""

    target: str
    inputs: int = 0
    accepted: int = 0
    outcomes: int = 0
    slowest_s: float = 0.0
    grown_mib: float = 0.0
    """Most memory that one process gained over its start."""
    deaths: int = 0
    """Of processes that may die, as their input is tried apart from all else."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        return asdict(self) | {"faults": len(self.faults)}


def run(name: str, count: int, seed: int, crashes: Path, tell: Callable[[Found], None] = lambda _: None) -> Found:
    """Try `count` inputs; write those that show a fault to `crashes`."""
    found = Found(name)
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        while found.inputs < count:
            _one_worker(found, count, seed, folder, tell)
            if found.deaths + len(found.faults) >= MAX_DEATHS:
                break
    finally:
        shutil.rmtree(folder)
    found.seconds = round(time.monotonic() - start, 1)
    for number, fault in enumerate(found.faults):
        crashes.mkdir(parents=True, exist_ok=True)
        (crashes / f"{name}-{number}.bin").write_bytes(bytes.fromhex(fault["input"]))
        (crashes / f"{name}-{number}.txt").write_text(str(fault.get("error") or fault))
    return found


def _one_worker(found: Found, count: int, seed: int, folder: Path, tell: Callable[[Found], None]) -> None:
    """Run one process to its end or death; its input numbers go on where the last one's ended."""
    first, accepted = found.inputs, found.accepted
    command = [sys.executable, "-m", "tests.bench.fuzz.worker", found.target, str(seed), str(first), str(count - first)]
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    with process.stdout:
        while select.select([process.stdout], [], [], HANG_S)[0] and (line := process.stdout.readline()):
            event = json.loads(line)
            if event.pop("event") != "progress":
                found.faults.append(event)
                continue
            found.inputs, found.accepted = first + event["done"], accepted + event["accepted"]
            found.outcomes = max(found.outcomes, event["outcomes"])
            found.slowest_s = max(found.slowest_s, event["slowest_s"])
            found.grown_mib = max(found.grown_mib, round(event["grown_bytes"] / (1 << 20), 1))
            tell(found)
        process.kill()  # it has ended, or it hangs
        code = process.wait()
    if found.inputs < count:
        _note_death(found, code, folder)


def _note_death(found: Found, code: int, folder: Path) -> None:
    """The worker ended before its time: the input at hand is to blame, and is stepped over."""
    current = folder / "current"
    number, data = Current.read(current) if current.exists() else (found.inputs, b"")
    found.inputs = max(found.inputs, number) + 1
    if make(found.target, folder).may_die:
        found.deaths += 1
        return
    errors = (folder / "errors").read_text(errors="replace")[-3000:]
    found.faults.append({"input": data.hex(), "error": f"the process ended with {code}\n{errors}"})
