"""Resident memory of processes, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


def peak_bytes(pid: int | str = "self") -> int:
    """Return the most bytes that were resident in a process at once. Raises OSError when it is gone."""
    return _field(pid, "VmHWM")


def resident_bytes(pid: int | str = "self") -> int:
    """Return the bytes now resident in a process. Raises OSError when it is gone."""
    return _field(pid, "VmRSS")


def _field(pid: int | str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no memory any more")
