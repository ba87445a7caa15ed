"""Read devices beside other duties: in a thread that may hang with the driver while nobody else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from inferd.devices.host import host_memory
from inferd.devices.nvml import Nvml
from inferd.devices.rapl import Rapl
from inferd.devices.readings import Gpus, Survey

PERIOD_S = 1.0
ABSENT_S = 60.0
"""Between two attempts where there is no driver."""
STALE_S = 5.0
"""A reading older than this is not shown as if it were new."""


class Sampler:
    """Keeps the newest reading of the GPUs. `latest` returns at once whatever the driver does."""

    def __init__(
        self,
        read: Callable[[], Gpus],
        *,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
        absent_s: float = ABSENT_S,
    ) -> None:
        self._read = read
        self._clock = clock
        self._period_s = period_s
        self._absent_s = absent_s
        self._newest: tuple[float, Gpus] | None = None
        self._begun = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let the thread end by itself; it may be stuck in the driver, so nobody waits for it."""
        self._ended.set()

    def latest(self) -> Gpus:
        """Return the newest reading; without figures while the driver gives no answer."""
        newest = self._newest
        at, gpus = newest if newest is not None else (self._begun, Gpus(problem="not read yet"))
        age = self._clock() - at
        absent = bool(gpus.problem) and newest is not None
        if age <= (self._absent_s if absent else self._period_s) + STALE_S:
            return gpus
        return silent(gpus, age)

    def _run(self) -> None:
        while not self._ended.is_set():
            gpus = self._read()
            self._newest = self._clock(), gpus  # one assignment: a reader sees the old pair or the new one
            self._ended.wait(self._absent_s if gpus.problem else self._period_s)


def silent(gpus: Gpus, age_s: float) -> Gpus:
    """Return the same GPUs without figures."""
    problem = f"the driver has not answered for {age_s:.0f} s"
    kept = tuple(
        replace(
            gpu,
            free_bytes=None,
            utilization=None,
            power_w=None,
            energy_j=None,
            temperature_c=None,
            processes=None,
            problem=problem,
        )
        for gpu in gpus.gpus
    )
    return replace(gpus, gpus=kept, problem=problem)


def survey(timeout_s: float = 3.0, *, nvml: Nvml | None = None, rapl: Rapl | None = None) -> Survey:
    """Read everything once, for commands; a driver that does not answer in time is a problem like others."""
    sampler = Sampler((nvml or Nvml()).read)
    sampler.start()
    counter = rapl or Rapl()
    end = time.monotonic() + timeout_s
    while sampler._newest is None and time.monotonic() < end:
        time.sleep(0.01)
    sampler.close()
    gpus = sampler.latest() if sampler._newest is not None else silent(Gpus(), timeout_s)
    return Survey(host=host_memory(), gpus=gpus, cpu_energy_j=counter.energy_j(), cpu_energy_problem=counter.problem)
