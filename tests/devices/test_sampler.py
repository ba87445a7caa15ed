"""The thread that reads: what it found last is there at once, also while the driver hangs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from inferd.devices import Gpus, Nvml, Sampler, gpu_sampler, survey
from inferd.devices.rapl import Rapl
from inferd.devices.sampler import STALE_S
from tests.devices.fake_nvml import GIB, FakeGpu, FakeNvml, error


def test_a_hanging_driver_holds_up_nobody_and_its_figures_fade() -> None:
    now, hanging, released, nvml = [0.0], threading.Event(), threading.Event(), FakeNvml(FakeGpu())
    reads = Nvml(nvml).read
    first = reads()

    def hang() -> None:
        hanging.set()
        released.wait(60)

    nvml.hang = hang
    sampler = gpu_sampler(Nvml(nvml), clock=lambda: now[0])
    sampler._newest = 0.0, first
    sampler.answered.set()
    sampler.start()
    assert hanging.wait(60)
    assert sampler.latest().gpus[0].free_bytes == 60 * GIB
    now[0] += STALE_S + 2
    (gpu,) = sampler.latest().gpus
    assert (gpu.total_bytes, gpu.free_bytes, gpu.power_w, gpu.processes) == (80 * GIB, None, None, None)
    assert gpu.problem == "the driver has not answered for 7 s"
    sampler.close()
    released.set()


def test_a_driver_that_never_answers_is_told_too() -> None:
    now = [0.0]
    sampler = gpu_sampler(Nvml(FakeNvml()), clock=lambda: now[0])
    assert sampler.latest().problem == "not read yet"
    now[0] = STALE_S + 1
    assert sampler.latest().problem == "the driver has not answered for 6 s"


def test_without_a_driver_the_thread_asks_seldom() -> None:
    asked = []

    def read() -> Gpus:
        asked.append(1)
        return Gpus(problem="none")

    sampler = Sampler(read, Gpus(), period=lambda gpus: 30.0 if gpus.problem else 0.001)
    sampler.start()
    assert sampler.answered.wait(60)
    time.sleep(0.05)
    assert (len(asked), sampler.latest().problem) == (1, "none")
    sampler.close()


def test_a_survey_waits_only_so_long(tmp_path: Path) -> None:
    nvml, released = FakeNvml(FakeGpu()), threading.Event()
    found = survey(nvml=Nvml(nvml), rapl=Rapl(tmp_path))
    assert found.gpus.gpus[0].uuid == "GPU-0"
    assert found.host is not None
    assert found.host.total >= found.host.free > 0
    assert (found.cpu_energy_j, found.cpu_energy_problem) == (None, f"no RAPL domain in {tmp_path}")
    nvml.hang = lambda: released.wait(60)
    late = survey(0.05, nvml=Nvml(nvml), rapl=Rapl(tmp_path))
    assert late.gpus.problem.startswith("the driver has not answered for ")
    released.set()


def test_a_survey_without_a_driver_says_why(tmp_path: Path) -> None:
    found = survey(nvml=Nvml(FakeNvml(init_error=error("DRIVER_NOT_LOADED"))), rapl=Rapl(tmp_path))
    assert found.gpus.problem == "Driver Not Loaded"
