"""Memory of the machine and of processes, from /proc: no package is needed for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of the machine, or of the control group that confines us."""

    total: int
    free: int
    """What can be had without swapping, as the kernel estimates it."""


def host_memory(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> HostMemory | None:
    """Read what the machine, or a tighter control group (version 2), has; None where neither can be read."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int((group / "memory.max").read_text())  # "max" where there is none
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return HostMemory(total, free)
    return HostMemory(min(total, limit), min(free, max(0, limit - used)))


def process_bytes(pids: Iterable[int]) -> int | None:
    """Add up the memory of processes and their children, mapped files left out; None where none can be read."""
    try:
        import psutil
    except ImportError:
        return None
    total, seen = 0, set[int]()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
        for member in family:
            if member.pid not in seen:
                seen.add(member.pid)
                total += _resident(member)
    return total if seen else None


def own_bytes() -> int | None:
    """The same for this process alone, without its children."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _resident(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        memory = process.memory_info()
        return memory.rss - memory.shared
    except psutil.Error:
        return 0  # it ended in this moment
