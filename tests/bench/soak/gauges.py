"""Memory, files and threads of the daemon's processes over the time of a soak."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.e2e.harness import Served, anonymous_bytes

EVERY_S = 1.0
MIB = 1 << 20


class Gauges(threading.Thread):
    """Samples once a second: (time, process, pid, private bytes, open files, threads)."""

    def __init__(self, daemon: Served, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._over = stop
        self.samples: list[tuple[float, str, int, int, int, int]] = []

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            self.sample()

    def sample(self) -> None:
        for name, pid in {"front": self._daemon.pid, **self._daemon.children()}.items():
            try:
                files, threads = (len(list(Path(f"/proc/{pid}/{part}").iterdir())) for part in ("fd", "task"))
                self.samples.append((time.monotonic(), name, pid, anonymous_bytes(pid), files, threads))
            except (OSError, KeyError):
                continue  # it has just ended

    def trend(self, name: str, since: float) -> dict[str, Any] | None:
        """Compare the last quarter with the first one, of the process that is alive at the end."""
        mine = [s for s in self.samples if s[1] == name and s[0] >= since]
        same = [s for s in mine if s[2] == mine[-1][2]]
        quarter = len(same) // 4
        if quarter < 3:
            return None
        begin, end = same[:quarter], same[-quarter:]
        first, last = (median(s[3] for s in part) for part in (begin, end))
        return {
            "seconds": round(same[-1][0] - same[0][0]),
            "first_mib": round(first / MIB, 2),
            "last_mib": round(last / MIB, 2),
            "grown_percent": round(100 * (last - first) / first, 2),
            "files": [int(median(s[4] for s in part)) for part in (begin, end)],
            "threads": [int(median(s[5] for s in part)) for part in (begin, end)],
        }
