"""The header check: truncation, overlaps, holes, and sizes that do not fit (CASES.md 5.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from inferd.load.errors import LoadError
from inferd.load.safetensors_header import MAX_HEADER_BYTES, read_header


def written(path: Path, header: Any, data: bytes = b"\0" * 24, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(shape: list[Any], start: Any, end: Any, dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


GOOD = {"a": entry([2, 2], 0, 16), "b": entry([4], 16, 24, "F16"), "__metadata__": {"format": "pt"}}

BAD: dict[str, Any] = {
    "tensor b: range 12..20 overlaps": {"a": entry([4], 0, 16), "b": entry([4], 12, 20, "F16")},
    r"tensor b: range 18..26 leaves a hole": {"a": entry([4], 0, 16), "b": entry([4], 18, 26, "F16")},
    "tensor a: range 8..24 leaves a hole": {"a": entry([4], 8, 24)},
    "is truncated: its tensors take 32": {"a": entry([8], 0, 32)},
    "has bytes that belong to no tensor": {"a": entry([4], 0, 16)},
    r"range 0..24 does not hold \[5\] of F32": {"a": entry([5], 0, 24)},
    "range 24..0 does not hold": {"a": entry([6], 24, 0)},
    "range -24..0 does not hold": {"a": entry([6], -24, 0)},
    "bad shape": {"a": entry([-6], 0, 24)},
    r"bad shape \[True\]": {"a": entry([True], 0, 24)},
    r"tensor a: bad shape \[1.0\]": {"a": entry([1.0], 0, 24)},
    r"bad shape \[6, 1, 1": {"a": entry([6] + [1] * 8, 0, 24)},
    r"bad shape \[4611686018427387904": {"a": entry([1 << 62], 0, 24)},
    "unknown dtype 'F33'": {"a": entry([6], 0, 24, "F33")},
    "must have dtype, shape and data_offsets only": {"a": entry([6], 0, 24, 7)},
    "tensor b: must have dtype": {"b": entry([6], 0, 24, extra=1)},
    "tensor c: must have dtype": {"c": [1, 2]},
    "must be a JSON object": [1],
    "header: .* appears twice": b'{"a": 1, "a": 2}',
    "header: Expecting": b"{'a'",
    "header: .* can't decode": b"{\xff}",
    "__metadata__ must map strings to strings": {"__metadata__": {"a": 1}, "a": entry([6], 0, 24)},
    "range False..24": {"a": entry([6], False, 24)},
}


def test_a_good_header(tmp_path: Path) -> None:
    metas = read_header(written(tmp_path / "x", GOOD))
    assert [tuple(meta) for meta in metas.values()] == [("a", (2, 2), "F32"), ("b", (4,), "F16")]


@pytest.mark.parametrize(("message", "header"), BAD.items())
def test_a_bad_header_is_named(tmp_path: Path, message: str, header: Any) -> None:
    with pytest.raises(LoadError, match=f"x.safetensors: .*{message}|x.safetensors: {message}"):
        read_header(written(tmp_path / "x.safetensors", header))


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 1000])
def test_a_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(LoadError, match=rf"header of {length} bytes in a file of"):
        read_header(written(tmp_path / "x", GOOD, length=length))


def test_a_header_beyond_the_cap_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "x", b"{}", b"", length=200 << 20)
    with path.open("r+b") as file:
        file.truncate(201 << 20)
    with pytest.raises(LoadError, match=rf"at most {MAX_HEADER_BYTES} are allowed"):
        read_header(path)


def test_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    content = written(tmp_path / "x", GOOD).read_bytes()
    for length in range(len(content)):
        (tmp_path / "x").write_bytes(content[:length])
        with pytest.raises(LoadError):
            read_header(tmp_path / "x")


def test_one_byte_too_many_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "x", GOOD, b"\0" * 25)
    with pytest.raises(LoadError, match=r"bytes that belong to no tensor: its tensors take 24 bytes.* has 25"):
        read_header(path)


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_what_we_accept_the_official_library_accepts(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.safetensors"
    save_file({"a": torch.ones(3, 2), "b": torch.ones(4, dtype=torch.float16)}, path)
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    path.write_bytes(content)
    try:
        metas = read_header(path)
    except LoadError:
        return
    with safe_open(path, framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert shapes == {name: list(meta.shape) for name, meta in metas.items()}
