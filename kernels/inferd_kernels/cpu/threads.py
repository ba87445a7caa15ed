"""How many threads compute: physical cores that this process may use. No torch."""

from __future__ import annotations

import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")


def physical_cores() -> int:
    """Count physical cores within the affinity mask and the cgroup's CPU quota; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in allowed})
    quota = cpu_quota(CGROUP, SELF)
    return max(1, cores if quota is None else min(cores, max(1, int(quota))))


def _siblings(cpu: int) -> str:
    try:
        return (CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def cpu_quota(root: Path, own: Path) -> float | None:
    """Return the least cpu.max (cgroup v2) from this process's group upwards, in CPUs; None = no limit."""
    try:
        relative = own.read_text().strip().splitlines()[-1].split("::", 1)[1].lstrip("/")
    except (OSError, IndexError):
        return None
    limits: list[float] = []
    for folder in (root / relative, *(root / relative).parents):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                limits.append(int(quota) / int(period))
        except (OSError, ValueError):
            pass
        if folder == root:
            break
    return min(limits, default=None)
