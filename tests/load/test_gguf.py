"""The GGUF reader against the `gguf` package and on a handmade file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from inferd.load.errors import LoadError
from inferd.load.gguf import GgufFile
from inferd.load.gguf_types import BLOCK_TYPES
from tests.load.gguf_fields import VALUES, build
from tests.tiny import tiny_gguf


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return path


def test_reads_every_kind_of_value(tmp_path: Path) -> None:
    file = GgufFile(written(tmp_path, build()))
    assert file.metadata == {
        "general.alignment": 32,
        "general.architecture": "llama",
        "a.flag": True,
        "a.numbers": [1, -2, 3],
        "a.words": ["ab", "c"],
        "a.nested": [[7, 8]],
    }
    assert [(t.name, t.shape, t.type, t.nbytes) for t in file.tensors.values()] == [
        ("one", (2, 16), "F32", 128),
        ("two", (16,), "F32", 64),
    ]
    assert [bytes(file.bytes_of(t)) for t in file.tensors.values()] == list(VALUES)


def test_version_2_is_read(tmp_path: Path) -> None:
    assert GgufFile(written(tmp_path, build({"version": 2}))).metadata["a.flag"] is True


@pytest.mark.parametrize("quant", ["F32", "BF16", "Q4_1", "Q8_0", "Q6_K"])
def test_equals_the_gguf_package(tmp_path: Path, quant: str) -> None:
    path = tiny_gguf(tmp_path, quant=quant, hidden=256, inner=256, layers=1, heads=8)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.type == tensor.tensor_type.name
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.offset == tensor.data_offset
        assert bytes(ours.bytes_of(mine)) == tensor.data.tobytes()


def test_block_sizes_equal_the_gguf_package() -> None:
    for code, block in BLOCK_TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == block


def test_the_map_outlives_the_file_object_and_is_private(tmp_path: Path) -> None:
    path = written(tmp_path, build())
    file = GgufFile(path)
    view = file.bytes_of(file.tensors["two"])
    del file
    view[0] = 99
    assert view[0] == 99
    assert path.read_bytes() == build()


def test_a_file_cut_after_opening_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, build())
    file = GgufFile(path)
    path.write_bytes(build()[:-100])
    with pytest.raises(LoadError, match=r"tensor two: cannot be mapped"):
        file.bytes_of(file.tensors["two"])


def test_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    code = (
        "import sys; from pathlib import Path; from inferd.load.checkpoint import open_checkpoint;"
        f"c = open_checkpoint(Path({str(path)!r})); c.tensors(); c.config();"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
