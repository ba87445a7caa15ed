"""The nouns of this package: what was read at one moment. None = nobody tells, never 0."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.devices.host import HostMemory


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process on a GPU."""

    pid: int
    bytes: int | None
    """None where the driver does not say, as in many containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one instance that MIG cut from it."""

    index: int
    """Of the GPU in NVML's order, which is that of the PCI bus."""
    uuid: str
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    unified: bool = False
    """It has no memory of its own: the figures are the system's."""
    utilization: float | None = None
    """Share of the last moments in which some kernel ran, 0 to 1."""
    power_w: float | None = None
    energy_j: float | None = None
    """Counter since the driver was loaded."""
    temperature_c: int | None = None
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    processes: tuple[ProcessMemory, ...] | None = None
    """Those that compute."""
    display: bool | None = None
    """Whether a display is connected or kept for one, or some process draws."""
    parent: str = ""
    """Of a MIG instance: UUID of the GPU."""
    mig: bool = False
    """The GPU is cut into instances; work runs on those."""
    problem: str = ""
    """Why its figures are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What the NVIDIA driver says."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    """Newest CUDA version the driver runs."""
    problem: str = ""
    """Why no GPU can be read; empty with a driver that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything at one moment."""

    host: HostMemory | None
    gpus: Gpus
    cpu_energy_j: float | None
    """Counter of the CPU packages and their memory."""
    cpu_energy_problem: str = ""
