"""The thread that reads: what it found last is there at once, also while the driver hangs."""

from __future__ import annotations

import threading
import time

from inferd.devices import Gpus, Nvml, Sampler, survey
from inferd.devices.rapl import Rapl
from inferd.devices.sampler import STALE_S
from tests.devices.fake_nvml import GIB, FakeGpu, FakeNvml, error


def until(condition, timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_hanging_driver_holds_up_nobody_and_its_figures_fade() -> None:
    now, released, nvml = [0.0], threading.Event(), FakeNvml(FakeGpu())
    sampler = Sampler(Nvml(nvml).read, clock=lambda: now[0], period_s=0.01)
    sampler.start()
    until(lambda: sampler.latest().gpus)
    hanging = threading.Event()

    def hang() -> None:
        hanging.set()
        released.wait(10)

    nvml.hang = hang
    assert hanging.wait(5)
    fresh = sampler.latest()
    assert fresh.gpus[0].free_bytes == 60 * GIB
    now[0] += STALE_S + 2
    (gpu,) = sampler.latest().gpus
    assert (gpu.total_bytes, gpu.free_bytes, gpu.power_w, gpu.processes) == (80 * GIB, None, None, None)
    assert gpu.problem == "the driver has not answered for 7 s"
    sampler.close()
    released.set()


def test_without_a_driver_the_thread_asks_seldom() -> None:
    asked = []

    def read() -> Gpus:
        asked.append(1)
        return Gpus(problem="none")

    sampler = Sampler(read, period_s=0.001, absent_s=30)
    assert sampler.latest().problem == "not read yet"
    sampler.start()
    until(lambda: sampler.latest().problem == "none")
    time.sleep(0.05)
    assert len(asked) == 1
    sampler.close()


def test_a_survey_waits_only_so_long(tmp_path) -> None:
    nvml, released = FakeNvml(FakeGpu()), threading.Event()
    found = survey(nvml=Nvml(nvml), rapl=Rapl(tmp_path))
    assert found.gpus.gpus[0].uuid == "GPU-0"
    assert found.host is not None
    assert found.host.total >= found.host.free > 0
    assert (found.cpu_energy_j, found.cpu_energy_problem) == (None, f"no RAPL domain in {tmp_path}")
    nvml.hang = lambda: released.wait(10)
    late = survey(0.05, nvml=Nvml(nvml), rapl=Rapl(tmp_path))
    assert late.gpus.problem == "the driver has not answered for 0 s"
    released.set()


def test_a_survey_without_a_driver_says_why(tmp_path) -> None:
    found = survey(nvml=Nvml(FakeNvml(init_error=error("DRIVER_NOT_LOADED"))), rapl=Rapl(tmp_path))
    assert found.gpus.problem == "Driver Not Loaded"
