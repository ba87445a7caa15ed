"""Folders in Hugging Face form: good ones, damaged ones, and what each error names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferd.load.checkpoint import open_checkpoint
from inferd.load.errors import LoadError
from inferd.load.hf import INDEX, SINGLE
from tests.tiny import Tiny, tiny_llama, weights

SECOND = "model-00002-of-00002.safetensors"


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def assert_same_weights(path: Path, expected: dict[str, torch.Tensor]) -> None:
    checkpoint = open_checkpoint(path)
    assert checkpoint.source == "hf"
    assert checkpoint.architecture_name == "llama"
    assert set(checkpoint.tensors()) == set(expected)
    for name, tensor in expected.items():
        meta = checkpoint.tensors()[name]
        assert meta.shape == tuple(tensor.shape)
        assert torch.equal(checkpoint.read(name), tensor)
    assert checkpoint.nbytes == sum(t.numel() * t.element_size() for t in expected.values())
    checkpoint.close()


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "stored"), [("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")])
def test_single_and_sharded_files_give_the_same_tensors(tmp_path: Path, shards: int, dtype: str, stored: str) -> None:
    path = tiny_llama(tmp_path, shards=shards, dtype=dtype, layers=1)
    assert_same_weights(path, {n: t.to(getattr(torch, dtype)) for n, t in weights(Tiny(layers=1)).items()})
    assert {meta.dtype for meta in open_checkpoint(path).tensors().values()} == {stored}


def test_a_tensor_read_outlives_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama(tmp_path, layers=1))
    norm = checkpoint.read("model.norm.weight")
    checkpoint.close()
    del checkpoint
    assert torch.equal(norm, weights(Tiny(layers=1))["model.norm.weight"])


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, shards=2)
    (path / SECOND).unlink()
    with pytest.raises(LoadError, match=rf"shard {SECOND} is missing \(10 tensors"):
        open_checkpoint(path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, shards=2)
    index = json.loads((path / INDEX).read_text())["weight_map"]
    edit_json(path / INDEX, weight_map={**index, "ghost.weight": SECOND})
    with pytest.raises(LoadError, match=r"tensor ghost.weight is listed in .* but absent"):
        open_checkpoint(path)
    dropped = next(name for name, shard in index.items() if shard == SECOND)
    edit_json(path / INDEX, weight_map={n: s for n, s in index.items() if n != dropped})
    with pytest.raises(LoadError, match=f"{SECOND}: tensor {dropped} is not listed"):
        open_checkpoint(path)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "model.bin", 7, ""])
def test_an_index_may_not_lead_out_of_the_folder(tmp_path: Path, shard: object) -> None:
    path = tiny_llama(tmp_path, shards=2)
    edit_json(path / INDEX, weight_map={"a": shard})
    with pytest.raises(LoadError, match=r"weight_map: a: .* is no name of a safetensors file"):
        open_checkpoint(path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, shards=2)
    first = load_file(path / "model-00001-of-00002.safetensors")
    second = load_file(path / SECOND)
    name = next(iter(first))
    save_file(second | {name: first[name]}, path / SECOND)
    with pytest.raises(LoadError, match=f"tensor {name} is not listed for this shard"):
        open_checkpoint(path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    (path / SINGLE).rename(path / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"neither .* nor .* is there; pickled weights \(.bin, .pt\)"):
        open_checkpoint(path)


def test_a_reader_names_an_unknown_tensor(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="tensor nope is missing"):
        open_checkpoint(tiny_llama(tmp_path)).read("nope")


def test_config_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, config={"auto_map": {"AutoModel": "evil.Model"}})
    with pytest.raises(LoadError, match=r"config.json: auto_map: .* never run"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "model_type is missing"),
        (b'{"model_type": 3}', "model_type must be a string, not 3"),
    ],
)
def test_bad_config_json_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tiny_llama(tmp_path)
    (path / "config.json").write_bytes(content)
    with pytest.raises(LoadError, match=f"config.json: {message}"):
        open_checkpoint(path)


def test_a_metadata_only_file_opens_and_has_no_tensors(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    save_file({}, path / SINGLE, metadata={"format": "pt"})
    checkpoint = open_checkpoint(path)
    assert dict(checkpoint.tensors()) == {}
    assert checkpoint.nbytes == 0


def test_an_empty_tensor_loads(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, tensors={"none": torch.empty(0, 4)}, layers=1)
    assert open_checkpoint(path).tensors()["none"].shape == (0, 4)
    assert open_checkpoint(path).read("none").shape == (0, 4)
