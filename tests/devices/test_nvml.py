"""GPUs as drivers really answer: whole, cut by MIG, without memory of their own, lost, and absent."""

from __future__ import annotations

import pytest

from inferd.devices import HostMemory, Nvml
from tests.devices.fake_nvml import GIB, FakeGpu, FakeNvml, error

SYSTEM = HostMemory(128 * GIB, 100 * GIB)


def reader(nvml: FakeNvml) -> Nvml:
    return Nvml(nvml, system_memory=lambda: SYSTEM)


def test_several_gpus() -> None:
    found = reader(FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1", memory=(24 * GIB, 24 * GIB), processes=()))).read()
    assert (found.driver, found.cuda, found.problem) == ("580.65.06", (13, 0), "")
    first, second = found.gpus
    assert (first.index, first.uuid, first.total_bytes, first.free_bytes) == (0, "GPU-0", 80 * GIB, 60 * GIB)
    assert (first.utilization, first.power_w, first.energy_j, first.capability) == (0.4, 350.0, 9000.0, (9, 0))
    assert first.processes is not None
    assert [(p.pid, p.bytes) for p in first.processes] == [(4711, 18 * GIB)]
    assert (second.index, second.total_bytes, second.processes, second.unified) == (1, 24 * GIB, (), False)


@pytest.mark.parametrize(
    ("answers", "display"),
    [
        ((0, 0, ()), False),
        ((1, 0, ()), True),
        ((0, 1, ()), True),
        ((0, 0, (812,)), True),
        (error("NOT_SUPPORTED"), None),
    ],
)
def test_a_desktop_shows_by_its_monitor_its_memory_or_its_processes(answers: object, display: bool | None) -> None:
    (gpu,) = reader(FakeNvml(FakeGpu(display=answers))).read().gpus
    assert (gpu.display, gpu.problem) == (display, "")


@pytest.mark.parametrize(
    "name", ["FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH"]
)
def test_an_old_driver_answers_the_older_question(name: str) -> None:
    (gpu,) = reader(FakeNvml(FakeGpu(memory_v2=error(name)))).read().gpus
    assert (gpu.total_bytes, gpu.free_bytes, gpu.unified) == (80 * GIB, 60 * GIB, False)


@pytest.mark.parametrize("memory", [error("NOT_SUPPORTED"), (0, 0)])
def test_a_gpu_without_memory_of_its_own_has_the_systems(memory: object) -> None:
    """GB10 refuses the question or answers zeros, by driver; other figures are there."""
    unified = FakeGpu(name="NVIDIA GB10", memory=memory, power_mw=11_170, energy_mj=error("NOT_SUPPORTED"))
    (gpu,) = reader(FakeNvml(unified)).read().gpus
    assert (gpu.total_bytes, gpu.free_bytes, gpu.unified) == (SYSTEM.total, SYSTEM.free, True)
    assert (gpu.power_w, gpu.energy_j, gpu.problem) == (11.17, None, "")


def test_nothing_is_made_up_where_nothing_is_supported() -> None:
    """Jetson: hardly any question has an answer, and there may be no /proc/meminfo to read."""
    no = error("NOT_SUPPORTED")
    bare = FakeGpu(name=no, memory=no, utilization=no, power_mw=no, energy_mj=no, processes=no, mig=no)
    (gpu,) = Nvml(FakeNvml(bare), system_memory=lambda: None).read().gpus
    assert (gpu.name, gpu.total_bytes, gpu.free_bytes, gpu.unified) == ("GPU 0", None, None, False)
    assert (gpu.utilization, gpu.power_w, gpu.energy_j, gpu.processes, gpu.mig) == (None, None, None, None, False)
    assert gpu.problem == "Not Supported"


@pytest.mark.parametrize("name", ["UNKNOWN", "NO_PERMISSION", "GPU_IS_LOST"])
def test_other_errors_of_the_memory_question_are_no_unified_memory(name: str) -> None:
    (gpu,) = reader(FakeNvml(FakeGpu(memory=error(name)))).read().gpus
    assert (gpu.total_bytes, gpu.free_bytes, gpu.unified) == (None, None, False)
    assert gpu.problem
    assert gpu.power_w == 350.0


def test_mig_instances_are_listed_with_what_they_tell() -> None:
    no = error("NOT_SUPPORTED")
    cut = FakeGpu(uuid="MIG-a", name="NVIDIA H100 MIG 1g.10gb", memory=(10 * GIB, 9 * GIB), utilization=no, power_mw=no)
    refused = FakeGpu(uuid="MIG-b", memory=error("NO_PERMISSION"), utilization=no)
    unanswered = FakeGpu(uuid="MIG-c", memory=no, utilization=no)
    gpu = FakeGpu(mig=(1, 1), utilization=no, instances=[cut, refused, unanswered])
    whole, a, b, c = reader(FakeNvml(gpu)).read().gpus
    assert (whole.mig, whole.parent, whole.utilization, whole.total_bytes) == (True, "", None, 80 * GIB)
    assert (a.uuid, a.parent, a.index, a.total_bytes) == ("MIG-a", "GPU-0", 0, 10 * GIB)
    assert (a.utilization, a.power_w, a.mig) == (None, None, False)
    assert (b.total_bytes, b.problem) == (None, "Insufficient Permissions")
    assert (c.total_bytes, c.unified) == (None, False)


def test_a_cut_gpu_that_refuses_is_not_unified() -> None:
    whole, *_ = reader(FakeNvml(FakeGpu(mig=(1, 1), memory=error("NOT_SUPPORTED")))).read().gpus
    assert (whole.unified, whole.total_bytes) == (False, None)


def test_one_gpu_lost_leaves_the_other() -> None:
    nvml = FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-1"))
    reads = reader(nvml)
    assert [gpu.problem for gpu in reads.read().gpus] == ["", ""]
    nvml.gpus[1].uuid = error("GPU_IS_LOST")  # type: ignore[assignment]
    healthy, lost = reads.read().gpus
    assert (healthy.problem, healthy.total_bytes) == ("", 80 * GIB)
    assert (lost.problem, lost.total_bytes, lost.uuid) == ("GPU is lost", None, "")
    assert nvml.num_inits == 1


def test_a_driver_under_which_no_gpu_is_left_is_started_anew() -> None:
    nvml = FakeNvml(FakeGpu())
    reads = reader(nvml)
    reads.read()
    nvml.gpus[0].uuid = error("UNINITIALIZED")  # type: ignore[assignment]
    assert reads.read().gpus[0].problem == "Uninitialized"
    nvml.gpus[0].uuid = "GPU-0"
    assert reads.read().gpus[0].problem == ""
    assert (nvml.num_inits, nvml.num_shutdowns) == (2, 1)


@pytest.mark.parametrize("name", ["UNINITIALIZED", "UNKNOWN", "DRIVER_NOT_LOADED", "GPU_IS_LOST"])
def test_the_driver_goes_in_mid_run_and_comes_back(name: str) -> None:
    nvml = FakeNvml(FakeGpu())
    reads = reader(nvml)
    reads.read()
    nvml.gone = error(name)
    for _ in range(2):
        gone = reads.read()
        assert (gone.gpus, bool(gone.problem)) == ((), True)
    nvml.gone = None
    assert reads.read().gpus[0].total_bytes == 80 * GIB
    assert (nvml.num_inits, nvml.num_shutdowns) == (3, 2)


@pytest.mark.parametrize(
    "name", ["LIB_RM_VERSION_MISMATCH", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND"]
)
def test_a_driver_that_does_not_start_is_told_in_one_line(name: str) -> None:
    found = reader(FakeNvml(init_error=error(name))).read()
    assert found.gpus == ()
    assert found.problem
    assert "\n" not in found.problem


def test_a_library_that_breaks_in_other_ways_is_a_problem_too() -> None:
    assert reader(FakeNvml(init_error=OSError("libnvidia-ml.so.1:\n file too short"))).read().problem == (
        "libnvidia-ml.so.1: file too short"
    )


def test_close_is_idempotent_and_silent() -> None:
    nvml = FakeNvml(FakeGpu())
    reads = reader(nvml)
    reads.close()
    reads.read()
    nvml.gone = error("UNKNOWN")
    reads.close()
    reads.close()
    assert nvml.num_shutdowns == 1
