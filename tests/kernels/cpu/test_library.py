"""Finding, refusing and building the library; counting cores."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from inferd_kernels.cpu import build, library, threads
from inferd_kernels.cpu.library import Library, LibraryMissingError, load
from inferd_kernels.linear import default_kernels


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let `load` look again, and forget what it finds here."""
    monkeypatch.setattr(library, "load", library.load.__wrapped__)
    return monkeypatch


def test_without_a_library_torch_serves_and_says_why(unloaded: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unloaded.setattr(library, "LIBRARY", tmp_path / "none.so")
    with pytest.raises(LibraryMissingError, match="not built"):
        library.load()
    assert "not built" in library.why_missing()
    kernels = default_kernels("auto")
    assert not kernels.lookup("u4_group", "cpu").packed
    assert "not built" in kernels.missing
    with pytest.raises(ValueError, match=r"engine\.linear = 'native', but .*not built"):
        default_kernels("native")


def test_what_builds_the_library_can_be_run_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert library.build_command() == "make kernels"
    installed = tmp_path / "site-packages" / "inferd_kernels" / "cpu"
    monkeypatch.setattr(library, "HERE", installed)
    assert library.build_command() == f"{sys.executable} {installed}/build.py"


def test_a_library_of_other_sources_is_refused(unloaded: pytest.MonkeyPatch, library: Library) -> None:
    from inferd_kernels.cpu import library as module

    class Changed:
        @staticmethod
        def source_hash() -> str:
            return "0" * 16

    unloaded.setattr(module, "_builder", lambda: Changed)
    assert "run `make kernels`" in module.why_missing()


def test_the_hash_covers_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "src"
    shutil.copytree(build.SOURCES, copy)
    monkeypatch.setattr(build, "SOURCES", copy)
    before = build.source_hash()
    for path in sorted(copy.iterdir()):
        text = path.read_text()
        path.write_text(text + "\n")
        assert build.source_hash() != before, path.name
        path.write_text(text)
    assert build.source_hash() == before


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(build.CompileError, match="no C compiler `no-such-cc`"):
        build.compile_library(tmp_path / "x.so", compiler="no-such-cc")


def test_other_machines_get_the_plain_tier(library: Library) -> None:
    assert set(build.tiers("riscv64")) == {"scalar"}
    assert set(build.tiers("aarch64")) == {"scalar", "neon", "neondot"}
    assert set(build.tiers("x86_64")) == set(library.tiers)
    assert library.tiers["scalar"]
    with pytest.raises(ValueError, match="'neon'"):
        library.use_tier("neon")
    with pytest.raises(ValueError, match="no operator"):
        load().op("no_such_operator")


def test_cores_are_those_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0,2\n" if cpu % 2 == 0 else "1,3\n")
    for allowed, cores in (({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({7}, 1)):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert threads.usable_cores(tmp_path, tmp_path, tmp_path / "none") == (cores, "physical cores")


@pytest.mark.parametrize("name", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_slow_cores_of_a_hybrid_processor_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for cpu, speed in enumerate((5000, 5200, 5000, 3600, 3600, 3600)):  # two turbo bins, three slow cores
        file = tmp_path / f"cpu{cpu}" / name
        file.parent.mkdir(parents=True)
        file.write_text(f"{speed}\n")
    for allowed, count in ((set(range(6)), 3), ({2, 3, 4}, 1), ({3, 4, 5}, 3)):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        cores = threads.usable_cores(tmp_path, tmp_path, tmp_path / "none")
        assert cores.number == count
        assert ("performance" in cores.why) == (len(allowed) != count)


def test_a_quota_anywhere_above_limits(tmp_path: Path) -> None:
    own, root = tmp_path / "self", tmp_path / "cgroup"
    (root / "a" / "b").mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert threads.cpu_quota(root, own) is None
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert threads.cpu_quota(root, own) == 1.5


def test_quotas_of_the_first_cgroup_version_count_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, root = tmp_path / "self", tmp_path / "cgroup"
    own.write_text("5:cpuset:/x\n4:cpu,cpuacct:/a/b\n0::/\n")
    folder = root / "cpu,cpuacct" / "a"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.cpu_quota(root, own) is None
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    assert threads.cpu_quota(root, own) == 2.5
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads.usable_cores(tmp_path / "none", root, own) == (2, "a CPU quota of 2.5")
