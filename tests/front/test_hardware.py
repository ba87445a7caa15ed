"""Devices as status shows them: GPUs of a made-up driver, what models hold on them, and what is left to others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferd.config.schema import Config
from inferd.devices import Gpu, Gpus, HostMemory, Rapl, Sampler
from inferd.devices.nvml import Nvml
from inferd.devices.readings import ProcessMemory
from inferd.front.hardware import Hardware, gpu_of
from inferd.front.ledger import Ledger
from inferd.front.model import Model
from inferd.link import DeviceUse, ModelCard, StepStats
from inferd_client.protocol import DeviceStatus, MemoryUse
from tests.devices.fake_nvml import FakeGpu, FakeNvml, error

MIB = 1 << 20
GIB = 1 << 30


def model(device: str, *, uuid: str = "", pid: int = 11, name: str = "m", use: DeviceUse | None = None) -> Model:
    """A model with 10 MiB of weights and half of its 80 MiB of KV in use."""
    made = Model(
        name=name, path="", file_bytes=0, config=Config(), device=device, is_default=True, keep_alive_s=0.0, use=use
    )
    made.card = ModelCard(
        architecture="a",
        dtype="bf16",
        device=device,
        vocab_size=1,
        context=1,
        eos_ids=(),
        pieces=[],
        special_ids=(),
        plugins={},
        manifest=(),
        weight_bytes=10 * MIB,
        kv_bytes=80 * MIB,
        process_bytes=30 * MIB,
        device_uuid=uuid,
    )
    zero: dict[str, Any] = dict.fromkeys(StepStats.__struct_fields__, 0)
    made.stats = StepStats(**(zero | {"kv_total": 8, "kv_free": 4}))
    made.child = SimpleNamespace(pid=pid)  # type: ignore[assignment]
    return made


def fixed(value: Any) -> Any:
    return Sampler(lambda: value, value, clock=lambda: 0.0)


def statuses(
    models: Iterable[Model], gpus: Gpus, own: int | None = None, host: HostMemory | None = None
) -> dict[str, DeviceStatus]:
    ledger = Ledger(0, 0, lambda: host)
    for one in models:
        ledger.settle(one.device, one.name, 1)
    hardware = Hardware(ledger, lambda: host, lambda: models, gpus=fixed(gpus), own=fixed(own), rapl=Rapl(Path("/no")))
    return {device.name: device for device in hardware.statuses()}


def test_the_host_is_split_to_the_last_byte() -> None:
    """300 MiB used: 120 are ours, of which 10 + 40 + 5 are known, 30 are programs and 35 free blocks once touched."""
    use = DeviceUse(activation_bytes=5 * MIB)
    cpu = statuses([model("cpu", use=use)], Gpus(), 120 * MIB, HostMemory(1000 * MIB, 700 * MIB))["cpu"]
    assert cpu.memory == MemoryUse(
        weights=10 * MIB, kv_used=40 * MIB, kv_free=40 * MIB, activations=5 * MIB, process=30 * MIB, other=180 * MIB
    )


@pytest.mark.parametrize(("own", "process"), [(70, 15), (85, 30), (90, 30), (125, 30), (150, 55)])
def test_free_blocks_take_what_programs_do_not_explain(own: int, process: int) -> None:
    use = DeviceUse(activation_bytes=5 * MIB)
    cpu = statuses([model("cpu", use=use)], Gpus(), own * MIB, HostMemory(1000 * MIB, 700 * MIB))["cpu"]
    assert cpu.memory is not None
    assert (cpu.memory.process, cpu.memory.other) == (process * MIB, (300 - own) * MIB)


def test_without_figures_of_our_processes_only_a_sure_rest_is_others() -> None:
    cpu = statuses([model("cpu")], Gpus(), None, HostMemory(1000 * MIB, 700 * MIB))["cpu"]
    assert cpu.memory == MemoryUse(weights=10 * MIB, kv_used=40 * MIB, kv_free=40 * MIB, other=210 * MIB)
    tight = statuses([model("cpu")], Gpus(), None, HostMemory(1000 * MIB, 950 * MIB))["cpu"]
    assert tight.memory is not None
    assert tight.memory.other is None
    nothing = statuses([], Gpus())["cpu"]
    assert (nothing.total_bytes, nothing.memory) == (None, MemoryUse())


def test_a_gpu_is_found_by_its_identity_and_not_by_its_number() -> None:
    """CUDA may count the devices in another order than the driver, or see some of them alone."""
    gpus = Nvml(
        FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1", memory=(24 * GIB, 4 * GIB), processes=((11, 19 * GIB),)))
    ).read()
    device = statuses([model("cuda:0", uuid="GPU-1", use=DeviceUse(activation_bytes=MIB))], gpus)["cuda:0"]
    assert (device.total_bytes, device.free_bytes, device.power_w, device.utilization) == (
        24 * GIB,
        4 * GIB,
        350.0,
        0.4,
    )
    assert device.memory is not None
    assert device.memory.other == GIB
    assert device.memory.weights == 10 * MIB
    assert device.memory.process == 19 * GIB - (10 + 40 + 1 + 40) * MIB
    assert device.problem == ""


@pytest.mark.parametrize("own", [92, 100, 120, 400])
def test_the_parts_of_a_gpu_are_what_the_driver_counts(own: int) -> None:
    """A pool takes its memory at once there; what programs take of the host's (30 MiB) says nothing of a GPU's."""
    gpus = Nvml(FakeNvml(FakeGpu(uuid="GPU-1", memory=(24 * GIB, 4 * GIB), processes=((11, own * MIB),)))).read()
    memory = statuses([model("cuda:0", uuid="GPU-1", use=DeviceUse(activation_bytes=MIB))], gpus)["cuda:0"].memory
    assert memory is not None
    parts = (memory.weights, memory.kv_used, memory.kv_free, memory.activations, memory.process)
    assert sum(part or 0 for part in parts) == own * MIB


def test_without_an_identity_the_number_counts() -> None:
    gpus = Nvml(FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1"))).read().gpus
    assert gpu_of(model("cuda:1"), gpus) is gpus[1]
    assert gpu_of(model("cuda"), gpus) is gpus[0]
    assert gpu_of(model("cuda:0", uuid="GPU-9"), gpus) is None
    assert gpu_of(model("cpu"), gpus) is None


def test_where_the_driver_does_not_tell_torch_does() -> None:
    use = DeviceUse(activation_bytes=MIB, total_bytes=8 * GIB, free_bytes=6 * GIB)
    absent = statuses([model("cuda:0", use=use)], Gpus(problem="Driver Not Loaded"))["cuda:0"]
    assert (absent.total_bytes, absent.free_bytes, absent.problem) == (8 * GIB, 6 * GIB, "Driver Not Loaded")
    refused = Nvml(FakeNvml(FakeGpu(memory=error("NO_PERMISSION")))).read()
    device = statuses([model("cuda:0", use=use)], refused)["cuda:0"]
    assert (device.total_bytes, device.problem, device.power_w) == (8 * GIB, "", 350.0)
    silent = statuses([model("cuda:0")], refused)["cuda:0"]
    assert (silent.total_bytes, silent.problem) == (None, "Insufficient Permissions")


def test_unified_memory_is_the_hosts() -> None:
    host = HostMemory(1000 * MIB, 700 * MIB)
    nvml = Nvml(FakeNvml(FakeGpu(name="NVIDIA GB10", memory=error("NOT_SUPPORTED"))), system_memory=lambda: host)
    device = statuses([model("cuda:0", uuid="GPU-0")], nvml.read(), 120 * MIB, host)["cuda:0"]
    assert (device.unified, device.total_bytes, device.free_bytes) == (True, 1000 * MIB, 700 * MIB)
    assert device.memory is not None
    assert device.memory.other == 180 * MIB


def test_power_of_a_cut_gpu_is_that_of_the_whole() -> None:
    whole = Gpu(index=0, uuid="GPU-0", name="H100", power_w=300.0, mig=True)
    parts = [Gpu(index=0, uuid=f"MIG-{i}", name="1g", parent="GPU-0") for i in range(2)]
    models = [model("cuda:0", uuid=f"MIG-{i}", name=str(i)) for i in range(2)]
    hardware = Hardware(
        Ledger(0, 0, lambda: None),
        lambda: None,
        lambda: models,
        gpus=fixed(Gpus(gpus=(whole, *parts, Gpu(index=1, uuid="GPU-1", name="idle")))),
        own=fixed(None),
        rapl=Rapl(Path("/no")),
    )
    assert hardware.gpus_in_use() == [whole]
    models.clear()
    assert [device.name for device in hardware.statuses()] == ["cpu", "MIG-0", "MIG-1", "gpu:1"]


def test_a_gpu_that_no_model_uses_is_listed_by_the_drivers_number() -> None:
    gpus = Nvml(FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1", name="spare"))).read()
    found = statuses([model("cuda:0", uuid="GPU-0")], gpus)
    assert list(found) == ["cpu", "cuda:0", "gpu:1"]
    assert (found["gpu:1"].description, found["gpu:1"].total_bytes, found["gpu:1"].memory) == ("spare", 80 * GIB, None)


class Lines:
    """In place of a log."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.said.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.said.append(("warning", event, fields))


def test_the_driver_is_told_once_and_again_when_it_goes() -> None:
    nvml, log = FakeNvml(FakeGpu()), Lines()
    reads = Nvml(nvml)
    sampler: Any = Sampler(reads.read, Gpus(problem="not read yet"), clock=lambda: 0.0)
    hardware = Hardware(
        Ledger(0, 0, lambda: None), lambda: None, list, gpus=sampler, own=fixed(None), rapl=Rapl(Path("/no")), log=log
    )
    hardware.note_driver()
    assert log.said == []
    states = [reads.read(), reads.read()]
    nvml.gone = error("GPU_IS_LOST")
    states += [
        reads.read(),
        Gpus(problem="the driver has not answered for 7 s"),
        Gpus(problem="the driver has not answered for 8 s"),
    ]
    nvml.gone = None
    states.append(reads.read())
    for state in states:
        sampler._newest = 0.0, state
        hardware.note_driver()
    assert [line[:2] for line in log.said] == [
        ("info", "gpus"),
        ("warning", "gpus are not readable any more"),
        ("warning", "gpus are not readable any more"),
        ("info", "gpus"),
    ]
    assert log.said[0][2] == {"driver": "580.65.06", "gpus": ["NVIDIA H100"]}


def test_pids_of_another_numbering_are_not_ours() -> None:
    gpus = Gpus(
        gpus=(Gpu(index=0, uuid="", name="g", total_bytes=GIB, free_bytes=0, processes=(ProcessMemory(99, GIB),)),)
    )
    device = statuses([model("cuda:0")], gpus)["cuda:0"]
    assert device.memory is not None
    assert (device.memory.process, device.memory.other) == (None, GIB - 90 * MIB)
