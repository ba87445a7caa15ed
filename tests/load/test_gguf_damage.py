"""Damaged GGUF files: every header field falsified, cut anywhere, and random bytes (CASES.md 5.3, 5.4)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferd.load.errors import LoadError
from inferd.load.gguf import GgufFile
from inferd.load.gguf_types import MAX_ARRAY_ITEMS, MAX_DEPTH, MAX_KEYS, MAX_TENSORS
from tests.load.gguf_fields import build, header

EXTREMES = {
    "B": (0, 2, 255),
    "I": (0, 1, 3, 7, 9, 31, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1),
    "Q": (0, 1, 5, 1 << 20, 1 << 30, 1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
}

REFUSED: dict[str, dict[str, int | bytes]] = {
    r"magic: .* no GGUF file": {"magic": b"GGML"},
    r"version: GGUF version 1": {"version": 1},
    r"version: a big-endian file": {"version": 3 << 24},
    r"tensor count: .* do not fit": {"num tensors": 1 << 63},
    r"tensor count: 131073 tensors": {"num tensors": MAX_TENSORS + 1},
    r"metadata count: .* do not fit": {"num keys": 1 << 63},
    r"metadata count: 65537 keys": {"num keys": MAX_KEYS + 1},
    r"general.alignment: 0 is not a power of two": {"alignment": 0},
    r"general.alignment: 3 is not": {"alignment": 3},
    r"general.alignment: 4 is not": {"alignment": 4},
    r"general.alignment: 2147483648 is not": {"alignment": 1 << 31},
    r"general.alignment: must be a UINT32, not INT32": {"alignment type": 5},
    r"metadata key 0: string of 1073741824 bytes": {"alignment key length": 1 << 30},
    r"metadata key 2: needs 4000 bytes": {"flag key length": 4000},
    r"general.architecture: string of 1073741824 bytes": {"architecture length": 1 << 30},
    r"general.architecture: unknown value type 77": {"architecture type": 77},
    r"general.architecture: not UTF-8 at byte 1": {"architecture": b"l\xffama"},
    r"a.flag: a bool must be 0 or 1, not 7": {"flag": 7},
    r"a.numbers: array of .* items": {"numbers count": MAX_ARRAY_ITEMS + 1},
    r"a.numbers: needs 4000000 bytes": {"numbers count": 1000000},
    r"a.words: needs 8000000 bytes": {"words count": 1000000},
    r"a.words\[1\]: string of .* does not fit": {"second word length": 1 << 62},
    r"a.words\[0\]: not UTF-8": {"first word": b"\xc3\x28"},
    r"a.nested: needs 12000000 bytes": {"nested count": 1000000},
    r"metadata key 4: duplicate key 'a.number'": {
        "words key length": 8,
        "words key": b"a.number",
        "numbers key length": 8,
        "numbers key": b"a.number",
    },
    r"metadata key 2: empty key": {"flag key length": 0, "flag key": b""},
    r"name of tensor 0: string of 257 bytes": {"one name length": 257},
    r"tensor one: 0 dimensions": {"one num dims": 0},
    r"tensor one: 5 dimensions": {"one num dims": 5},
    r"tensor one: a dimension of \[0, 2\] is zero": {"one dim 0": 0},
    r"tensor one: ends at byte \d+ of a data section of 192": {"one dim 1": 1 << 62},
    r"tensor two: offset 128 lies inside": {"one dim 1": 3},
    r"tensor one: unknown tensor type 4": {"one type": 4},
    r"tensor one: rows of 16 values are no multiple of the 32 of a Q8_0 block": {"one type": 8},
    r"tensor two: offset 129 is no multiple": {"two offset": 129},
    r"tensor two: ends at byte 9223372036854775872": {"two offset": 1 << 63},
    r"tensor two: ends at byte 224 .* \(truncated\?\)": {"two offset": 160},
    r"tensor two: offset 96 lies inside the tensor before it, which ends at 128": {"two offset": 96},
    r"tensor one: appears twice": {"two name": b"one"},
}


def opened(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    return GgufFile(path)


@pytest.mark.parametrize(("message", "changes"), REFUSED.items())
def test_a_false_field_is_named(tmp_path: Path, message: str, changes: dict[str, int | bytes]) -> None:
    with pytest.raises(LoadError, match=message) as error:
        opened(tmp_path / "bad.gguf", build(changes))
    assert "bad.gguf" in str(error.value)


def test_every_field_at_every_extreme_is_quick_and_small(tmp_path: Path) -> None:
    content = build()
    for number, (name, code, value) in enumerate(header()):
        for extreme in EXTREMES.get(code, ()):
            if extreme != value:
                (tmp_path / f"{number} {name} {extreme}").write_bytes(build({name: extreme}))
    mutants = len(list(tmp_path.iterdir()))
    run = subprocess.run(
        [sys.executable, "-m", "tests.load.open_each", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *lines, peak = run.stdout.splitlines()
    results = [json.loads(line) for line in lines]
    assert len(results) == mutants > 250
    assert max(r["seconds"] for r in results) < 1.0
    assert int(peak) < 100e6
    structural = [r for r in results if "length" in r["name"] or "count" in r["name"]]
    assert all(r["error"] for r in structural if int(r["name"].split()[-1]) > len(content))


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    one_level = (9).to_bytes(4, "little") + (1).to_bytes(8, "little")
    with pytest.raises(LoadError, match=f"a.nested: arrays nested deeper than {MAX_DEPTH}"):
        opened(tmp_path / "x", build({"inner item type": 9, "inner count": 1, "inner": one_level * 2000}))


def test_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    content = build()
    for length in range(len(content)):
        with pytest.raises(LoadError):
            opened(tmp_path / "x", content[:length])


def test_the_array_cap_counts_all_arrays_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferd.load.gguf_cursor.MAX_ARRAY_ITEMS", 7)
    with pytest.raises(LoadError, match=r"a.nested: array of 2 items, at most 7"):
        opened(tmp_path / "x", build())


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), edits=st.integers(1, 6))
def test_random_damage_gives_a_load_error_or_a_file_in_bounds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, edits: int
) -> None:
    rng = random.Random(seed)
    content = bytearray(build())
    for _ in range(edits):
        at = rng.randrange(len(content))
        match rng.randrange(3):
            case 0:
                content[at] = rng.randrange(256)
            case 1:
                del content[at : at + rng.randrange(1, 9)]
            case _:
                content[at:at] = rng.randbytes(rng.randrange(1, 9))
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    try:
        file = opened(path, bytes(content))
    except LoadError:
        return
    for tensor in file.tensors.values():
        assert 0 < tensor.nbytes == len(file.bytes_of(tensor))
        assert tensor.offset + tensor.nbytes <= len(content)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_after_the_magic_give_a_load_error(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    with pytest.raises(LoadError):
        opened(path, b"GGUF\x03\0\0\0" + b"\x01" + tail)
