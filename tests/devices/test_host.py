"""Memory of the host, of a control group, and of processes; energy counters of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferd.devices import HostMemory, Rapl, host_memory, process_bytes

MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\n"


def folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "used", "wanted"),
    [
        ("max\n", "1\n", HostMemory(1000 * 1024, 600 * 1024)),
        (f"{200 * 1024}\n", f"{50 * 1024}\n", HostMemory(200 * 1024, 150 * 1024)),
        (f"{2000 * 1024}\n", f"{50 * 1024}\n", HostMemory(1000 * 1024, 600 * 1024)),
        (f"{200 * 1024}\n", f"{250 * 1024}\n", HostMemory(200 * 1024, 0)),
    ],
)
def test_the_tighter_of_machine_and_group_counts(tmp_path: Path, limit: str, used: str, wanted: HostMemory) -> None:
    group = folder(tmp_path, meminfo=MEMINFO, memory_max=limit, memory_current=used)
    assert host_memory(tmp_path / "meminfo", group) == wanted


def test_nothing_to_read_is_none(tmp_path: Path) -> None:
    assert host_memory(tmp_path / "meminfo", tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: lots\n")
    assert host_memory(tmp_path / "meminfo", tmp_path) is None


def test_a_process_counts_with_its_children_once() -> None:
    code = "import subprocess, sys; x = bytearray(40 << 20); subprocess.run([sys.executable, '-c', sys.argv[1]])"
    child = "x = bytearray(60 << 20); print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        both = process_bytes([parent.pid, parent.pid])
        assert both is not None
        assert 100 << 20 < both < 180 << 20
        parent.communicate(b"\n")
    assert process_bytes([parent.pid]) is None
    assert process_bytes([]) is None
    assert process_bytes([os.getpid(), 2**22 - 1]) is not None


class Zones:
    """A powercap folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, zone: str, name: str, energy: int, most: int = 1_000_000) -> None:
        at = self.root / zone
        at.mkdir()
        (at / "name").write_text(f"{name}\n")
        (at / "max_energy_range_uj").write_text(f"{most}\n")
        self.set(zone, energy)

    def set(self, zone: str, energy: int) -> None:
        (self.root / zone / "energy_uj").write_text(f"{energy}\n")


def test_rapl_counts_packages_and_their_memory_once(tmp_path: Path) -> None:
    zones = Zones(tmp_path)
    zones.add("intel-rapl:0", "package-0", 500_000)
    zones.add("intel-rapl:0:0", "core", 100_000)
    zones.add("intel-rapl:0:1", "dram", 7_000)
    zones.add("intel-rapl:1", "package-1", 0)
    zones.add("intel-rapl:2", "psys", 900_000)
    zones.add("intel-rapl-mmio:0", "package-0", 500_000)
    rapl = Rapl(tmp_path)
    assert rapl.energy_j() == 0.0
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:1", "intel-rapl:2"):
        zones.set(zone, 950_000)
    assert rapl.energy_j() == pytest.approx(0.45 + 0.943 + 0.95)


def test_rapl_counters_start_again_at_their_range(tmp_path: Path) -> None:
    zones = Zones(tmp_path)
    zones.add("intel-rapl:0", "package-0", 900_000)
    rapl = Rapl(tmp_path)
    zones.set("intel-rapl:0", 100_000)
    assert rapl.energy_j() == pytest.approx(0.2)
    zones.set("intel-rapl:0", 50_000)
    assert rapl.energy_j() == pytest.approx(1.15)


def test_rapl_that_cannot_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zones = Zones(tmp_path)
    zones.add("intel-rapl:0", "package-0", 0)
    file = tmp_path / "intel-rapl:0" / "energy_uj"
    rapl = Rapl(tmp_path)
    file.unlink()
    assert rapl.energy_j() is None
    assert "energy_uj" in rapl.problem

    file.write_text("0")
    read_text = Path.read_text

    def refuse(path: Path, *arguments: str) -> str:
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments)

    monkeypatch.setattr(Path, "read_text", refuse)
    closed = Rapl(tmp_path)
    assert (closed.energy_j(), closed.problem) == (None, f"{file} is not readable by this user")
