"""Read devices beside other duties: in a thread that may hang with a driver while nobody else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from inferd.devices.host import host_memory
from inferd.devices.nvml import Nvml
from inferd.devices.rapl import Rapl
from inferd.devices.readings import Gpus, Survey

T = TypeVar("T")

PERIOD_S = 1.0
ABSENT_S = 60.0
"""Between two attempts where there is no driver."""
STALE_S = 5.0
"""A reading that is so much overdue is not shown as if it were new."""


class Sampler(Generic[T]):
    """Calls `read` again and again and keeps the newest answer. `latest` returns at once, whatever `read` does.

    `period` says how long to wait after an answer; `stale` turns an overdue one into what may be shown of it.
    """

    def __init__(
        self,
        read: Callable[[], T],
        first: T,
        *,
        period: Callable[[T], float] = lambda _: PERIOD_S,
        stale: Callable[[T, float], T] = lambda value, _: value,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.first = first
        """What `latest` returns before the first answer."""
        self._read = read
        self._period = period
        self._stale = stale
        self._clock = clock
        self._newest = clock(), first
        self.answered = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let the thread end by itself; it may be stuck in a driver, so nobody waits for it."""
        self._ended.set()

    def latest(self) -> T:
        """Return the newest answer, or what may be shown of an overdue one."""
        at, value = self._newest
        age = self._clock() - at
        overdue = age > (self._period(value) if self.answered.is_set() else 0.0) + STALE_S
        return self._stale(value, age) if overdue else value

    def _run(self) -> None:
        while not self._ended.is_set():
            value = self._read()
            self._newest = self._clock(), value  # one assignment: a reader sees the old pair or the new one
            self.answered.set()
            self._ended.wait(self._period(value))


def gpu_sampler(nvml: Nvml, clock: Callable[[], float] = time.monotonic) -> Sampler[Gpus]:
    """Return a sampler that asks seldom where there is no driver, and shows no figures of one that hangs."""
    return Sampler(
        nvml.read,
        Gpus(problem="not read yet"),
        period=lambda gpus: ABSENT_S if gpus.problem else PERIOD_S,
        stale=silent,
        clock=clock,
    )


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
    sampler = gpu_sampler(nvml or Nvml())
    sampler.start()
    counter = rapl or Rapl()
    gpus = sampler.latest() if sampler.answered.wait(timeout_s) else silent(Gpus(), timeout_s)
    sampler.close()
    return Survey(host=host_memory(), gpus=gpus, cpu_energy_j=counter.energy_j(), cpu_energy_problem=counter.problem)
