"""What `open_checkpoint` accepts, and what a GGUF checkpoint gives."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from inferd.load.checkpoint import open_checkpoint
from inferd.load.errors import LoadError
from inferd.load.vocab import open_vocabulary
from tests.tiny import Tiny, tiny_gguf, tiny_llama
from tests.tiny_gguf import gguf_weights


def test_a_gguf_file_and_a_folder_with_one(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path, layers=1)
    for path in (file, tmp_path):
        checkpoint = open_checkpoint(path)
        assert (checkpoint.source, checkpoint.path, checkpoint.architecture_name) == ("gguf", file, "llama")
    expected = gguf_weights(Tiny(layers=1))
    assert set(checkpoint.tensors()) == set(expected)
    for name, tensor in expected.items():
        raw = checkpoint.read(name)
        assert raw.dtype == torch.uint8
        assert raw.ndim == 1
        assert torch.equal(raw.view(torch.float32).view(tensor.shape), tensor)
    assert checkpoint.nbytes == 4 * sum(t.numel() for t in expected.values())


def test_ids_stand_for_the_same_with_and_without_a_tokenizer(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path, layers=1)
    for path in (file, tmp_path, tiny_llama(tmp_path / "hf")):
        table = open_checkpoint(path).token_table()
        assert table == open_vocabulary(path).table
        assert table.special_ids
        assert b" the" in table.pieces


def test_a_folder_with_several_gguf_files_asks_for_one(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path)
    file.with_name("other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(LoadError, match=r"holds 2 GGUF files; name one of them: model.gguf, other.gguf"):
        open_checkpoint(tmp_path)


def test_config_json_wins_over_a_gguf_beside_it(tmp_path: Path) -> None:
    tiny_gguf(tmp_path)
    tiny_llama(tmp_path)
    assert open_checkpoint(tmp_path).source == "hf"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "no such file or folder"),
        ("empty", "config.json: no such file"),
        ("x.safetensors", "name the folder"),
        ("pytorch_model.bin", "pickled weights can run code"),
        ("x.pt", "pickled weights can run code"),
        ("x.txt", "magic: .* no GGUF file"),
        ("none.gguf", "the file is empty"),
    ],
)
def test_refused_paths(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / name
    if name == "empty":
        path.mkdir()
    elif name != "gone":
        path.write_bytes(b"" if name == "none.gguf" else b"hello")
    with pytest.raises(LoadError, match=message):
        open_checkpoint(path)


def written(path: Path, *, split: int = 0, arch: str | None = "llama") -> Path:
    writer = gguf.GGUFWriter(path, arch or "")
    if split:
        writer.add_uint16("split.count", split)
    writer.add_tensor("rope_freqs.weight", torch.tensor([1.0, 2.5]).numpy())
    writer.add_tensor("half", torch.ones(2, dtype=torch.float16).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"split.count: one part of a split model"):
        open_checkpoint(written(tmp_path / "x.gguf", split=2))
    assert open_checkpoint(written(tmp_path / "y.gguf", split=1)).architecture_name == "llama"


def test_a_gguf_without_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"general.architecture is missing"):
        open_checkpoint(written(tmp_path / "x.gguf", arch=None))


def test_small_float_tensors_are_read_into_the_configuration(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(written(tmp_path / "x.gguf"))
    config = checkpoint.config()
    assert config.floats("rope_freqs.weight") == (1.0, 2.5)
    assert config.tensor("rope_freqs.weight") == ("rope_freqs.weight", (2,), "F32")
    assert config.tensor("nope") is None
    with pytest.raises(LoadError, match=r"tensor half must hold at most .* F32"):
        config.floats("half")
    with pytest.raises(LoadError, match="tensor nope is missing"):
        checkpoint.read("nope")
