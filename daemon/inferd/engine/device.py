"""What torch tells of the device a worker computes on."""

from __future__ import annotations

from typing import NamedTuple

import torch

from inferd.devices import survey


class DeviceMemory(NamedTuple):
    """Bytes; None on a device torch does not know them of."""

    total: int | None = None
    free: int | None = None
    reserved: int | None = None
    """Held by torch's allocator in this process."""


def device_uuid(device: str) -> str:
    """Return the identity of a GPU as its driver spells it; empty for others."""
    if not device.startswith("cuda"):
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return ""
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def device_memory(device: str) -> DeviceMemory:
    if not device.startswith("cuda"):
        return DeviceMemory()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, torch.cuda.memory_reserved(device))


def has_display(device: str) -> bool | None:
    """Say whether a desktop uses a GPU; None = the driver does not tell."""
    uuid = device_uuid(device)
    return next((gpu.display for gpu in survey().gpus.gpus if gpu.uuid == uuid), None)


def is_there(device: str) -> bool:
    """Say whether torch sees this CUDA device."""
    index = int(device.partition(":")[2] or 0)
    return device.startswith("cuda") and torch.cuda.is_available() and index < torch.cuda.device_count()
