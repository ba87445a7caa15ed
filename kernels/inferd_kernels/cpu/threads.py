"""How many threads compute: physical cores that this process may use, fast ones where there are two kinds. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CPUS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
AS_FAST = 0.75
"""Cores with this share of the fastest one's capacity are of its kind; turbo bins differ by less."""


class Cores(NamedTuple):
    number: int
    why: str
    """What the count comes from."""


def physical_cores() -> int:
    """Count the threads that compute when nothing else is configured; at least 1."""
    return usable_cores().number


def usable_cores(cpus: Path = CPUS, cgroup: Path = CGROUP, own: Path = SELF) -> Cores:
    """Count performance cores within the affinity mask and the cgroup's CPU quota; at least 1.

    Slower cores of a hybrid processor are left out: every operator of a step would wait for them.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores: dict[str, int] = {}
    for cpu in sorted(allowed):
        cores.setdefault(_siblings(cpus, cpu), _capacity(cpus, cpu))
    fastest = max(cores.values())
    fast = sum(capacity >= AS_FAST * fastest for capacity in cores.values())
    quota = cpu_quota(cgroup, own)
    if quota is not None and int(quota) < fast:
        return Cores(max(1, int(quota)), f"a CPU quota of {quota:g}")
    if fast < len(cores):
        return Cores(fast, f"{fast} performance cores of {len(cores)} cores")
    return Cores(fast, "physical cores")


def _siblings(cpus: Path, cpu: int) -> str:
    try:
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _capacity(cpus: Path, cpu: int) -> int:
    """Return how fast a core is beside others, 1 where the system does not say."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        try:
            return int((cpus / f"cpu{cpu}" / name).read_text())
        except (OSError, ValueError):
            pass
    return 1


def cpu_quota(root: Path, own: Path) -> float | None:
    """Return the least CPU quota from this process's cgroup upwards, in CPUs; None = no limit. Both cgroup versions."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    limits: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            top = root / controllers
            limits += (q for folder in _upwards(top, path) if (q := _quota(folder)) is not None)
    return min(limits, default=None)


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """Yield a cgroup's folder and those above it; inside a container only the top may exist."""
    folder = top / path.lstrip("/")
    yield folder
    while folder != top:
        folder = folder.parent
        yield folder


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        granted = int((folder / "cpu.cfs_quota_us").read_text())
        return None if granted <= 0 else granted / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
