"""The devices as status shows them: what their memory holds, by model and by others, and what they draw."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from inferd.devices import Gpu, Nvml, Rapl, Sampler, gpu_sampler, process_bytes
from inferd.front.ledger import HOST
from inferd.link import DeviceUse
from inferd_client.protocol import DeviceStatus, MemoryUse

if TYPE_CHECKING:
    from inferd.devices import Gpus, HostMemory
    from inferd.front.ledger import Ledger
    from inferd.front.model import Model
    from inferd.log import Logger

FIGURES = re.compile(r"\d+")
"""What grows in a problem's text is no news."""
OWN_S = 2.0
"""Between two counts of our own processes' memory: a walk through /proc."""


class Hardware:
    """Newest readings of everything, put together with what models hold. Never waits for a driver."""

    def __init__(
        self,
        ledger: Ledger,
        memory: Callable[[], HostMemory | None],
        models: Callable[[], Iterable[Model]],
        *,
        gpus: Sampler[Gpus] | None = None,
        own: Sampler[int | None] | None = None,
        rapl: Rapl | None = None,
        log: Logger | None = None,
    ) -> None:
        self._ledger = ledger
        self._memory = memory
        self._models = models
        self._gpus = gpus or gpu_sampler(Nvml())
        self._own = own or Sampler(lambda: process_bytes([os.getpid()]), None, period=lambda _: OWN_S)
        self._rapl = rapl or Rapl()
        self._log = log
        self._told: str | None = None

    def start(self) -> None:
        self._gpus.start()
        self._own.start()

    def close(self) -> None:
        self._gpus.close()
        self._own.close()

    def note_driver(self) -> None:
        """Log once how the driver does, and once each time that this changes."""
        found = self._gpus.latest()
        state = found.problem and FIGURES.sub("", found.problem)
        if self._log is None or state == self._told or found is self._gpus.first:
            return
        if not found.problem:
            self._log.info("gpus", driver=found.driver, gpus=[gpu.name for gpu in found.gpus])
        elif self._told is None:
            self._log.info("no gpus", why=found.problem)
        else:
            self._log.warning("gpus are not readable any more", why=found.problem)
        self._told = state

    def gpus_in_use(self) -> list[Gpu]:
        """Return the GPUs that models run on; those cut by MIG tell power as a whole."""
        found = self._gpus.latest().gpus
        used = {gpu.uuid: gpu for model in self._models() if (gpu := gpu_of(model, found)) is not None}
        whole = {gpu.uuid: gpu for gpu in found if not gpu.parent}
        return list({(gpu.parent or gpu.uuid): whole.get(gpu.parent, gpu) for gpu in used.values()}.values())

    def cpu_energy_j(self) -> float | None:
        return self._rapl.energy_j()

    def statuses(self) -> tuple[DeviceStatus, ...]:
        """Return the ledger's devices with all that is known of them, then GPUs that no model uses.

        Those are called by the driver's number, as CUDA may count in another order.
        """
        found = self._gpus.latest()
        used = [gpu.uuid for model in self._models() if (gpu := gpu_of(model, found.gpus)) is not None]
        idle = [gpu for gpu in found.gpus if gpu.uuid not in used and not gpu.mig]
        return (
            *(self._status(device, found) for device in self._ledger.statuses()),
            *(_described(DeviceStatus(name=_idle_name(gpu)), gpu) for gpu in idle),
        )

    def _status(self, device: DeviceStatus, found: Gpus) -> DeviceStatus:
        models = [model for model in self._models() if model.device == device.name]
        if device.name == HOST:
            return _with_rest(device, self._own.latest(), models)
        gpu = next((gpu for model in models if (gpu := gpu_of(model, found.gpus)) is not None), None)
        return self._gpu_status(device, gpu, models, found.problem)

    def _gpu_status(self, device: DeviceStatus, gpu: Gpu | None, models: list[Model], problem: str) -> DeviceStatus:
        """Take the driver's figures, else those of torch in the worker."""
        use = next((model.use for model in models if model.use is not None), DeviceUse())
        device = msgspec.structs.replace(device, problem=problem) if gpu is None else _described(device, gpu)
        if device.total_bytes is None and use.total_bytes is not None:
            device = msgspec.structs.replace(
                device,
                total_bytes=use.total_bytes,
                free_bytes=use.free_bytes,
                problem="" if gpu is not None else problem,
            )
        if gpu is None or gpu.unified:
            return _with_rest(device, None if gpu is None else self._own.latest(), models)
        return _with_rest(device, _on_gpu(gpu, models), models, pools_whole=True)


def gpu_of(model: Model, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU a model runs on: by its identity, else by the number in the device's name."""
    if model.card is None or not model.card.device.startswith("cuda"):
        return None
    uuid, number = model.card.device_uuid, model.card.device.partition(":")[2] or "0"
    candidates = [gpu for gpu in gpus if (gpu.uuid == uuid if uuid else not gpu.parent and str(gpu.index) == number)]
    return candidates[0] if candidates else None


def _idle_name(gpu: Gpu) -> str:
    """Instances of one GPU share its number, and names are labels of metrics: each must differ."""
    return gpu.uuid if gpu.parent else f"gpu:{gpu.index}"


def _described(device: DeviceStatus, gpu: Gpu) -> DeviceStatus:
    """Add what the driver tells of a GPU."""
    return msgspec.structs.replace(
        device,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        description=gpu.name,
        unified=gpu.unified,
        utilization=gpu.utilization,
        power_w=gpu.power_w,
        temperature_c=gpu.temperature_c,
        problem=gpu.problem,
    )


def _held(models: list[Model]) -> MemoryUse:
    """Add up what models know that they hold."""
    cards = [model.card for model in models if model.card is not None]
    used = [
        card.kv_bytes * (stats.kv_total - stats.kv_free) // stats.kv_total
        for model in models
        if (card := model.card) is not None and (stats := model.stats) is not None and stats.kv_total
    ]
    scratch = [size for model in models if model.use is not None and (size := model.use.activation_bytes) is not None]
    return MemoryUse(
        weights=sum(card.weight_bytes for card in cards) if cards else None,
        kv_used=sum(used) if used else None,
        kv_free=sum(card.kv_bytes for card in cards) - sum(used) if used else None,
        activations=sum(scratch) if scratch else None,
    )


def _on_gpu(gpu: Gpu, models: list[Model]) -> int | None:
    """Return what the driver says our processes hold; None where it does not, or counts in other numbers than ours."""
    pids = {model.child.pid for model in models if model.child is not None}
    sizes = [process.bytes for process in gpu.processes or () if process.pid in pids]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _with_rest(
    device: DeviceStatus, own: int | None, models: list[Model], *, pools_whole: bool = False
) -> DeviceStatus:
    """Split what is used beyond the known parts: `own` bytes are those of all our processes there.

    A pool on the host takes memory as its blocks are first touched, so that a part of the free blocks is
    not in use yet; `pools_whole`: a GPU gives all of it at once. Where our processes are not known, what the
    models hold stands for them.
    """
    use = _held(models)
    held = sum(part or 0 for part in (use.weights, use.kv_used, use.activations))
    used = None if device.total_bytes is None or device.free_bytes is None else device.total_bytes - device.free_bytes
    if own is None:
        ours = held + (use.kv_free or 0)
        other = used - ours if used is not None and used >= ours else None
        return msgspec.structs.replace(device, memory=msgspec.structs.replace(use, other=other))
    programs = sum(model.card.process_bytes for model in models if model.card is not None)
    touched = use.kv_free or 0
    if not pools_whole:
        touched = min(touched, max(0, own - held - programs))
    other = None if used is None else max(0, used - own)
    return msgspec.structs.replace(
        device, memory=msgspec.structs.replace(use, process=max(0, own - held - touched), other=other)
    )
