"""Joules from counters and, where a device tells only its present power, from that power over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferd.devices import Gpu


class Drawn(NamedTuple):
    """Energy since the last reading; None where some device in use tells nothing."""

    joules: float | None
    meters: tuple[str, ...]
    """What was read."""


class PowerMeter:
    """Adds up what the devices in use have drawn between two readings."""

    def __init__(self) -> None:
        self._gpu_energy: dict[str, float] = {}
        self._cpu_energy: float | None = None
        self._last: float | None = None

    def read(self, now: float, gpus: Iterable[Gpu], cpu_energy_j: float | None) -> Drawn:
        """`gpus` are those in use; without one the CPU does the work, and must have a counter of its own."""
        wall = 0.0 if self._last is None else now - self._last
        in_use = list(gpus)
        found = {gpu.uuid: self._gpu(gpu, wall) for gpu in in_use}
        self._gpu_energy = {  # what a GPU draws while nobody uses it is not ours
            gpu.uuid: gpu.energy_j for gpu in in_use if gpu.energy_j is not None
        }
        cpu = self._cpu(cpu_energy_j)
        first, self._last = self._last is None, now
        known = [joules for joules in (*found.values(), cpu) if joules is not None]
        complete = all(joules is not None for joules in found.values()) and (bool(in_use) or cpu is not None)
        if first or not complete:
            return Drawn(None, ())
        meters = tuple(f"nvml {gpu.name}" for gpu in in_use) + (("rapl",) if cpu is not None else ())
        return Drawn(sum(known), meters)

    def _gpu(self, gpu: Gpu, wall: float) -> float | None:
        before = self._gpu_energy.get(gpu.uuid)
        if gpu.energy_j is None or before is None or gpu.energy_j < before:  # not told, not read before, or begun anew
            return None if gpu.power_w is None else gpu.power_w * wall
        return gpu.energy_j - before

    def _cpu(self, energy_j: float | None) -> float | None:
        before, self._cpu_energy = self._cpu_energy, energy_j
        return None if before is None or energy_j is None else energy_j - before
