"""The cache of repacked weights: what it finds, what it refuses, what it deletes."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
import torch

from inferd.load import repack_cache
from inferd.load.repack_cache import Purpose, RepackCache
from inferd.load.repack_file import ALIGNMENT, Matrices, RepackError, StoredMatrix, read, write

PURPOSE = Purpose("avx2", "layout-1", "llama 3 layers")
LIMIT = 1 << 30


def matrices(seed: int = 0, sizes: tuple[int, ...] = (1, 4096, 10_000, 50_001)) -> dict[str, tuple[StoredMatrix, ...]]:
    rng = torch.Generator().manual_seed(seed)
    made = [torch.randint(0, 256, (size,), generator=rng, dtype=torch.uint8) for size in sizes]
    parts = [StoredMatrix("Kernel", ("u4_group",), i, {"n": i, "zero": -i}, data) for i, data in enumerate(made)]
    return {"layers.0.attn.q": (parts[0],), "layers.0.mlp.gate layers.0.mlp.up": tuple(parts[1:])}


def same(a: Matrices, b: Matrices) -> bool:
    flat = [[part for parts in m.values() for part in parts] for m in (a, b)]
    alike = all(x[:4] == y[:4] and torch.equal(x.data, y.data) for x, y in zip(*flat, strict=True))
    return list(a) == list(b) and alike


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights" * 1000)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> RepackCache:
    return RepackCache(tmp_path / "cache", LIMIT)


def only_file(cache: RepackCache) -> Path:
    (path,) = cache.folder.glob("*.repacked")
    return path


def test_what_was_saved_is_found_again(cache: RepackCache, model: Path) -> None:
    assert cache.find(model, PURPOSE) is None
    cache.save_later(model, PURPOSE, matrices())
    cache.wait()
    found = cache.find(model, PURPOSE)
    assert found is not None
    assert same(found, matrices())
    assert all(part.data.data_ptr() % ALIGNMENT == 0 for parts in found.values() for part in parts)


def test_weights_lie_in_the_memory_that_is_handed_in(cache: RepackCache, model: Path) -> None:
    cache.save(model, PURPOSE, matrices())
    memory = mmap.mmap(-1, 1 << 20)
    first = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    found = cache.find(model, PURPOSE, lambda size: memory if size <= 1 << 20 else mmap.mmap(-1, size))
    assert found is not None
    assert same(found, matrices())
    assert all(first <= part.data.data_ptr() < first + (1 << 20) for parts in found.values() for part in parts)


@pytest.mark.parametrize("field", Purpose._fields)
def test_any_other_purpose_is_a_miss(cache: RepackCache, model: Path, field: str) -> None:
    cache.save(model, PURPOSE, matrices())
    assert cache.find(model, PURPOSE._replace(**{field: "other"})) is None


def test_content_decides_not_the_path(cache: RepackCache, model: Path, tmp_path: Path) -> None:
    cache.save(model, PURPOSE, matrices())
    moved = tmp_path / "elsewhere" / model.name
    moved.parent.mkdir()
    model.rename(moved)
    assert cache.find(moved, PURPOSE) is not None


def test_other_content_of_the_same_size_and_time_is_a_miss(cache: RepackCache, model: Path) -> None:
    cache.save(model, PURPOSE, matrices())
    times = model.stat()
    model.write_bytes(b"Weights" * 1000)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cache.find(model, PURPOSE) is None


def test_a_folder_is_known_by_all_its_weights(cache: RepackCache, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(name.encode())
    cache.save(folder, PURPOSE, matrices())
    assert cache.find(folder, PURPOSE) is not None
    (folder / "b.safetensors").write_bytes(b"changed")
    assert cache.find(folder, PURPOSE) is None


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def first_data(path: Path) -> int:
    return ALIGNMENT * -(-(48 + int.from_bytes(path.read_bytes()[8:16], "little")) // ALIGNMENT)


DAMAGES = {
    "cut short": cut,
    "empty": lambda path: path.write_bytes(b""),
    "another format": lambda path: path.write_bytes(b"GGUF" + bytes(5000)),
    "a longer header": lambda path: flip(path, 15),
    "a bit of the header": lambda path: flip(path, 60),
    "the first byte of data": lambda path: flip(path, first_data(path)),
    "a bit in whole pages": lambda path: flip(path, first_data(path) + 3 * ALIGNMENT + 77),
    "a bit behind whole pages": lambda path: flip(path, path.stat().st_size - ALIGNMENT + 50_001 % ALIGNMENT - 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_anew_with_one_line(cache, model, damage, caplog) -> None:
    cache.save(model, PURPOSE, matrices())
    damage(only_file(cache))
    assert cache.find(model, PURPOSE) is None
    assert len(caplog.records) == 1
    assert "made anew" in caplog.text
    cache.save(model, PURPOSE, matrices())
    assert cache.find(model, PURPOSE) is not None


def test_a_file_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", "key a", matrices())
    with pytest.raises(RepackError, match="something else"):
        read(tmp_path / "a", "key b")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_the_file_of_another_user_is_refused(cache: RepackCache, model: Path, caplog) -> None:
    cache.save(model, PURPOSE, matrices())
    os.chown(only_file(cache), 12345, -1)
    assert cache.find(model, PURPOSE) is None
    assert "belongs to user 12345" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_line(model: Path, tmp_path: Path, caplog) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = RepackCache(tmp_path / "file", LIMIT)
    assert cache.find(model, PURPOSE) is None
    cache.save(model, PURPOSE, matrices())
    assert len(caplog.records) == 1
    assert "in memory only" in caplog.text


def test_a_full_disk_costs_a_line_and_leaves_nothing(cache, model, caplog, monkeypatch) -> None:
    monkeypatch.setattr(repack_cache, "DISK_RESERVE", 1 << 60)
    cache.save(model, PURPOSE, matrices())
    assert "are free" in caplog.text
    assert not list(cache.folder.glob("*.repacked"))


def test_a_failed_write_leaves_nothing(cache: RepackCache, model: Path, caplog, monkeypatch) -> None:
    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    cache.folder.mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", fail)
    cache.save(model, PURPOSE, matrices())
    assert "No space left" in caplog.text
    assert [path.name for path in cache.folder.iterdir() if path.is_file()] == []


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = RepackCache(tmp_path / "cache", LIMIT)
    models = [tmp_path / f"{i}.gguf" for i in range(4)]
    for age, path in enumerate(models[:3]):
        path.write_bytes(path.name.encode() * 99)
        cache.save(path, PURPOSE, matrices())
        newest = max(cache.folder.glob("*.repacked"), key=lambda p: p.stat().st_mtime_ns)
        os.utime(newest, (age, age))
    assert cache.find(models[0], PURPOSE) is not None  # used just now
    size = cache.size_of(models[0])
    bounded = RepackCache(tmp_path / "cache", 2 * size + 1)
    models[3].write_bytes(b"four")
    bounded.save(models[3], PURPOSE, matrices())
    assert [cache.size_of(path) > 0 for path in models] == [True, False, False, True]


def test_weights_larger_than_the_cache_are_not_kept(tmp_path: Path, model: Path) -> None:
    cache = RepackCache(tmp_path / "cache", 1000)
    cache.save(model, PURPOSE, matrices())
    assert not cache.folder.exists()


def test_an_older_layout_is_replaced_and_another_tier_stays(cache: RepackCache, model: Path) -> None:
    other = PURPOSE._replace(isa="avx512")
    cache.save(model, PURPOSE, matrices())
    cache.save(model, other, matrices())
    cache.save(model, PURPOSE._replace(layout="layout-2"), matrices())
    assert cache.find(model, PURPOSE) is None
    assert cache.find(model, other) is not None


def test_leftovers_of_killed_writers_go(cache: RepackCache, model: Path) -> None:
    cache.folder.mkdir(parents=True)
    left, own = (cache.folder / f".x-{PURPOSE.suffix}.{pid}" for pid in (2**22 + 1, os.getpid()))
    left.touch()
    own.touch()
    cache.save(model, PURPOSE, matrices())
    assert (left.exists(), own.exists()) == (False, True)


def test_removing_a_model_removes_all_its_files(cache: RepackCache, model: Path) -> None:
    cache.save(model, PURPOSE, matrices())
    cache.save(model, PURPOSE._replace(rest="other"), matrices())
    size = cache.size_of(model)
    assert cache.remove(model) == size > 0
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]
    assert cache.remove(model) == 0
