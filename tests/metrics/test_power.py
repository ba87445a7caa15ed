"""Joules between two readings: counters, power over time, devices that come, go and fall silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferd.devices import Gpu
from inferd.metrics.power import PowerMeter

GPU = Gpu(index=0, uuid="GPU-0", name="H100", power_w=300.0, energy_j=1000.0)


def test_counters_of_gpu_and_cpu_add_up() -> None:
    meter = PowerMeter()
    assert meter.read(0.0, [GPU], 50.0) == (None, ())
    assert meter.read(2.0, [replace(GPU, energy_j=1700.0)], 80.0) == (730.0, ("nvml H100", "rapl"))
    assert meter.read(3.0, [replace(GPU, energy_j=1700.0)], 80.0).joules == 0.0


def test_without_a_gpu_in_use_the_cpu_must_tell() -> None:
    meter = PowerMeter()
    meter.read(0.0, [], 5.0)
    assert meter.read(1.0, [], 25.0) == (20.0, ("rapl",))
    assert meter.read(2.0, [], None) == (None, ())
    assert meter.read(3.0, [], 60.0).joules is None
    assert meter.read(4.0, [], 61.0).joules == 1.0


def test_a_gpu_that_tells_its_power_alone() -> None:
    meter = PowerMeter()
    gpu = replace(GPU, energy_j=None)
    meter.read(10.0, [gpu], None)
    assert meter.read(12.0, [gpu], None) == (600.0, ("nvml H100",))
    assert meter.read(13.0, [replace(gpu, power_w=None)], None) == (None, ())


def test_what_a_gpu_drew_while_no_model_used_it_is_not_counted() -> None:
    meter = PowerMeter()
    meter.read(0.0, [GPU], 0.0)
    assert meter.read(1.0, [], 10.0).joules == 10.0
    back = meter.read(3600.0, [replace(GPU, energy_j=900_000.0, power_w=None)], 20.0)
    assert back == (None, ())  # not the energy of an hour in one interval
    assert meter.read(3601.0, [replace(GPU, energy_j=900_300.0)], 20.0).joules == 300.0


def test_a_counter_that_begins_anew_and_a_device_that_joins() -> None:
    meter = PowerMeter()
    meter.read(0.0, [GPU], None)
    assert meter.read(1.0, [replace(GPU, energy_j=10.0)], None).joules == 300.0
    other = replace(GPU, uuid="GPU-1", energy_j=5.0)
    joined = meter.read(3.0, [replace(GPU, energy_j=110.0), other], None)
    assert joined.joules == pytest.approx(100.0 + 600.0)
    silent = meter.read(4.0, [GPU, replace(other, energy_j=None, power_w=None)], 3.0)
    assert silent == (None, ())
