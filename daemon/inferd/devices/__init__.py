"""What the machine tells of itself: memory, power, energy, processes. No torch; `survey` is the way in."""

from inferd.devices.host import HostMemory, host_memory, own_bytes, process_bytes
from inferd.devices.nvml import Nvml
from inferd.devices.rapl import Rapl
from inferd.devices.readings import Gpu, Gpus, ProcessMemory, Survey
from inferd.devices.sampler import Sampler, gpu_sampler, survey

__all__ = [
    "Gpu",
    "Gpus",
    "HostMemory",
    "Nvml",
    "ProcessMemory",
    "Rapl",
    "Sampler",
    "Survey",
    "gpu_sampler",
    "host_memory",
    "own_bytes",
    "process_bytes",
    "survey",
]
