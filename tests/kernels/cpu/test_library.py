"""Finding, refusing and building the library; counting cores."""

from __future__ import annotations

import shutil
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
    assert set(build.tiers("aarch64")) == {"scalar"}
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
    monkeypatch.setattr(threads, "CPUS", tmp_path)
    monkeypatch.setattr(threads, "SELF", tmp_path / "none")
    for allowed, cores in (({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({7}, 1)):
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert threads.physical_cores() == cores


def test_a_quota_anywhere_above_limits(tmp_path: Path) -> None:
    own, root = tmp_path / "self", tmp_path / "cgroup"
    (root / "a" / "b").mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert threads.cpu_quota(root, own) is None
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert threads.cpu_quota(root, own) == 1.5
