"""NVIDIA GPUs through NVML (`nvidia-ml-py`), which may be absent, refuse single questions, or vanish.

Calls into the driver can hang when a GPU falls off the bus: nobody with other duties may make them (see
`sampler.py`). https://docs.nvidia.com/deploy/nvml-api
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from inferd.devices.host import HostMemory, host_memory
from inferd.devices.readings import Gpu, Gpus, ProcessMemory

T = TypeVar("T")


class Nvml:
    """Reads all GPUs; `read` never raises. Not thread-safe: one thread owns it.

    `library` is the module `pynvml` or one that acts as it does; by default it is imported at the first
    read. After a failure the library is started again at the next read.
    """

    def __init__(self, library: Any = None, *, system_memory: Callable[[], HostMemory | None] = host_memory) -> None:
        self._library = library
        self._system_memory = system_memory
        self._started = False

    def read(self) -> Gpus:
        try:
            nvml = self._start()
        except ImportError:
            return Gpus(problem="the package nvidia-ml-py is not installed")
        except Exception as error:  # noqa: BLE001 - drivers fail in ways that no list of errors foresees
            return Gpus(problem=_reason(error))
        try:
            gpus = tuple(gpu for index in range(nvml.nvmlDeviceGetCount()) for gpu in self._gpu(nvml, index))
        except Exception as error:  # noqa: BLE001
            self.close()
            return Gpus(problem=_reason(error))
        if gpus and all(gpu.problem for gpu in gpus):
            self.close()  # a driver that was reloaded needs a new start
        version = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        return Gpus(
            gpus=gpus,
            driver=_text(_ask(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
            cuda=None if version is None else (version // 1000, version % 1000 // 10),
        )

    def close(self) -> None:
        """Let go of the driver. Idempotent."""
        if self._started:
            self._started = False
            with suppress(Exception):
                self._library.nvmlShutdown()

    def _start(self) -> Any:
        if self._library is None:
            import pynvml

            self._library = pynvml
        if not self._started:
            self._library.nvmlInit()
            self._started = True
        return self._library

    def _gpu(self, nvml: Any, index: int) -> Iterator[Gpu]:
        """Yield a GPU and the instances cut from it."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            yield Gpu(index=index, uuid="", name=f"GPU {index}", problem=_reason(error))
            return
        mode = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
        gpu = self._describe(nvml, handle, index=index, uuid=uuid, mig=bool(mode and mode[0]))
        yield gpu
        if gpu.mig:
            yield from self._instances(nvml, handle, gpu)

    def _instances(self, nvml: Any, handle: Any, gpu: Gpu) -> Iterator[Gpu]:
        for number in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                uuid = _text(_ask(nvml, nvml.nvmlDeviceGetUUID, instance) or "")
                yield self._describe(nvml, instance, index=gpu.index, uuid=uuid, parent=gpu.uuid)

    def _describe(self, nvml: Any, handle: Any, *, index: int, uuid: str, mig: bool = False, parent: str = "") -> Gpu:
        """Ask everything; what is not supported stays None."""
        memory = self._memory(nvml, handle, whole=not (mig or parent))
        use = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        power = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        energy = _ask(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return Gpu(
            index=index,
            uuid=uuid,
            name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle) or f"GPU {index}"),
            total_bytes=memory.total,
            free_bytes=memory.free,
            unified=memory.unified,
            utilization=None if use is None else use.gpu / 100,
            power_w=None if power is None else power / 1000,
            energy_j=None if energy is None else energy / 1000,
            temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            capability=_ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle),
            processes=_processes(nvml, handle),
            display=_displays(nvml, handle),
            parent=parent,
            mig=mig,
            problem=memory.problem,
        )

    def _memory(self, nvml: Any, handle: Any, *, whole: bool) -> _Memory:
        """Ask in the newer form, then in the older; a GPU that has no memory of its own uses the system's."""
        problem = ""
        for version in (nvml.nvmlMemory_v2, None):
            try:
                info = nvml.nvmlDeviceGetMemoryInfo(handle, version)
            except nvml.NVMLError as error:
                problem = _reason(error)
                if _is(nvml, error, "NotSupported"):
                    continue
                if version is None or not _is(
                    nvml, error, "FunctionNotFound", "InvalidArgument", "ArgumentVersionMismatch"
                ):
                    return _Memory(problem=problem)
            else:
                if info.total:
                    return _Memory(info.total, info.free)
                problem = "the driver reports no memory"
        system = self._system_memory() if whole else None
        return _Memory(problem=problem) if system is None else _Memory(system.total, system.free, unified=True)


class _Memory(NamedTuple):
    total: int | None = None
    free: int | None = None
    unified: bool = False
    problem: str = ""


def _processes(nvml: Any, handle: Any) -> tuple[ProcessMemory, ...] | None:
    found = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if found is None else tuple(ProcessMemory(p.pid, p.usedGpuMemory) for p in found)


def _displays(nvml: Any, handle: Any) -> bool | None:
    """Say whether a desktop uses a GPU: a monitor, memory for one, or a process that draws; None = none is told."""
    found = (
        _ask(nvml, nvml.nvmlDeviceGetDisplayMode, handle),
        _ask(nvml, nvml.nvmlDeviceGetDisplayActive, handle),
        _ask(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
    )
    return None if all(answer is None for answer in found) else any(found)


def _ask(nvml: Any, question: Callable[..., T], *arguments: Any) -> T | None:
    """Ask one thing; None where the device or the driver has no answer."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _is(nvml: Any, error: Exception, *names: str) -> bool:
    """Whether an error is of one of these kinds; older libraries do not know all of them."""
    return any(isinstance(error, kind) for name in names if (kind := getattr(nvml, f"NVMLError_{name}", None)))


def _text(value: str | bytes) -> str:
    """Older versions of the library answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
