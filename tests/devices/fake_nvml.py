"""NVML with made-up GPUs: the error classes and constants are those of the real library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1 << 30


@dataclass
class FakeGpu:
    """What a GPU answers; an exception in place of a value is raised."""

    uuid: str = "GPU-0"
    name: Any = "NVIDIA H100"
    memory: Any = (80 * GIB, 60 * GIB)
    """(total, free), or an error of both forms of the call."""
    memory_v2: Any = None
    """None = as `memory`."""
    utilization: Any = 40
    power_mw: Any = 350_000
    energy_mj: Any = 9_000_000
    processes: Any = ((4711, 18 * GIB),)
    display: Any = (0, 0, ())
    """(mode, active, pids that draw)"""
    mig: Any = (0, 0)
    instances: list[FakeGpu] = field(default_factory=list)


class FakeNvml:
    """In place of the module `pynvml`. `gone` set: every call raises it, as when the driver is unloaded."""

    def __init__(self, *gpus: FakeGpu, init_error: Exception | None = None) -> None:
        self.gpus = list(gpus)
        self.init_error = init_error
        self.gone: Exception | None = None
        self.num_inits = self.num_shutdowns = 0
        self.hang: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error
        self.num_inits += 1

    def nvmlShutdown(self) -> None:
        self.num_shutdowns += 1
        self._answer(None)

    def nvmlDeviceGetCount(self) -> int:
        self.hang()
        return self._answer(len(self.gpus))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._answer(self.gpus[index])

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return self._answer(gpu.uuid)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return self._answer(gpu.name)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        newer = version is not None and gpu.memory_v2 is not None
        total, free = self._answer(gpu.memory_v2 if newer else gpu.memory)
        return SimpleNamespace(total=total, free=free, used=total - free)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(gpu=self._answer(gpu.utilization), memory=0)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return self._answer(gpu.power_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return self._answer(gpu.energy_mj)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return self._answer(55)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return self._answer((9, 0))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._answer(gpu.processes)]

    def nvmlDeviceGetDisplayMode(self, gpu: FakeGpu) -> int:
        return self._answer(gpu.display)[0]

    def nvmlDeviceGetDisplayActive(self, gpu: FakeGpu) -> int:
        return self._answer(gpu.display)[1]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self._answer(gpu.display)[2]]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        return self._answer(gpu.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return self._answer(7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._answer(gpu.instances[index])

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return self._answer(b"580.65.06")

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self._answer(13000)

    def _answer(self, value: Any) -> Any:
        if self.gone is not None:
            raise self.gone
        if isinstance(value, Exception):
            raise value
        return value


def error(name: str) -> pynvml.NVMLError:
    """`NOT_SUPPORTED`, `GPU_IS_LOST`, ..."""
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
