"""Section 5 through `build_engine`: a damaged model is one clear error, a good one is the right model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from inferd.load.errors import LoadError
from tests.equivalence.oracle import relative_error
from tests.equivalence.rig import Rig, build, submit
from tests.model.oracle import hf_logits
from tests.tiny import Tiny, tiny_gguf, tiny_llama, tiny_qwen2, weights

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
SHARD_1, SHARD_2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
PROMPT = [5, 118, 6, 200, 7, 60, 61]


def last_logits(path: Path, **options: Any) -> torch.Tensor:
    rig = build(path, **options)
    assert rig.run([submit("p", PROMPT, 1)])["p", 0].error is None
    return rig.tap.rows[-1].logits


def refused(path: Path) -> str:
    """Return the one line that loading ends with; it names the path."""
    with pytest.raises(LoadError) as caught:
        build(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# --- 5.1 and 5.3: shards that are absent, cut, or hold other things than the index says


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, shards=2)
    (path / SHARD_2).unlink()
    assert f"shard {SHARD_2} is missing" in refused(path)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_tensor_that_is_in_no_file_is_named(tmp_path: Path, shards: int) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    message = refused(tiny_llama(tmp_path, shards=shards, tensors={name: None}))
    assert f"tensor {name} is missing" in message


def test_a_tensor_that_nothing_reads_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.q_norm.weight"
    assert name in refused(tiny_llama(tmp_path, tensors={name: torch.ones(16)}))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.down_proj.weight"])
def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path, name: str) -> None:
    message = refused(tiny_llama(tmp_path, tensors={name: torch.ones(7, 3)}))
    assert name in message
    assert "(7, 3)" in message


def cut_last_byte(data: bytes) -> bytes:
    return data[:-1]


def cut_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def cut_in_header(data: bytes) -> bytes:
    return data[:100]


def one_byte_more(data: bytes) -> bytes:
    return data + b"\0"


DAMAGE = [cut_last_byte, cut_half, cut_in_header]


@pytest.mark.parametrize("damage", [*DAMAGE, one_byte_more])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_damaged_safetensors_file_is_named(tmp_path: Path, shards: int, damage: Callable[[bytes], bytes]) -> None:
    path = tiny_llama(tmp_path, shards=shards)
    file = path / (SHARD_2 if shards == 2 else "model.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    assert file.name in refused(path)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("quant", ["F32", "Q8_0", "Q4_1"])
def test_a_cut_gguf_is_named(tmp_path: Path, quant: str, damage: Callable[[bytes], bytes]) -> None:
    path = tiny_gguf(tmp_path, quant=quant, inner=96)
    last = max(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.data_offset)
    path.write_bytes(damage(path.read_bytes()[: int(last.data_offset + last.n_bytes)]))
    message = refused(path)
    assert last.name in message or damage is not cut_last_byte


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    """Two tensors on one range of bytes; the range of one is left unread."""
    path = tiny_llama(tmp_path)
    file = path / "model.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    first, second = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"
    header[second]["data_offsets"] = header[first]["data_offsets"]
    text = json.dumps(header, separators=(",", ":")).encode().ljust(size)[:size]
    file.write_bytes(data[:8] + text + data[8 + size :])
    assert file.name in refused(path)


# --- every parameter is written


@pytest.mark.parametrize("shards", [1, 2])
def test_every_parameter_comes_from_the_file(tmp_path: Path, shards: int) -> None:
    """5.1: each tensor of the file, set to NaN in turn, is seen in the logits; none of them unset is NaN."""
    for name in weights(Tiny(layers=1, attention_bias=True)):
        values = torch.full_like(weights(Tiny(layers=1, attention_bias=True))[name], float("nan"))
        if name.endswith("embed_tokens.weight"):
            values = weights(Tiny())[name].clone()
            values[PROMPT[2]] = float("nan")
        folder = tmp_path / f"{name}-{shards}"
        path = tiny_llama(folder, layers=1, attention_bias=True, shards=shards, tensors={name: values})
        result = build(path).run([submit("p", PROMPT, 1)])["p", 0]
        assert result.error is not None, f"{name} is not read"
    fine = tiny_llama(tmp_path / f"fine-{shards}", layers=1, attention_bias=True, shards=shards)
    assert relative_error(last_logits(fine), hf_logits(fine, PROMPT)[-1]) <= 1e-5


# --- 5.6 and 5.10


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (4, 4)])
def test_llama_rows_are_unpermuted_and_qwen2_rows_are_not(tmp_path: Path, heads: int, kv_heads: int) -> None:
    """5.6: the same weights as GGUF and in Hugging Face form give the same logits."""
    for arch, write in (("llama", tiny_llama), ("qwen2", tiny_qwen2)):
        options: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads}
        want = hf_logits(write(tmp_path / arch, **options), PROMPT)[-1]
        assert relative_error(last_logits(tiny_gguf(tmp_path / f"{arch}-gguf", arch=arch, **options)), want) <= 1e-5


def test_rows_in_the_wrong_order_are_seen(tmp_path: Path) -> None:
    """The comparison above has power: q or k rows left as they lie move logits by far more."""
    from tests.tiny_gguf import permuted

    stored = weights(Tiny())
    want = hf_logits(tiny_llama(tmp_path / "right"), PROMPT)[-1]
    for part, heads in (("q", 4), ("k", 2), ("k", 1)):
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        path = tiny_llama(tmp_path / f"{part}{heads}", tensors={name: permuted(stored[name], heads)})
        assert relative_error(last_logits(path), want) > 1e-3


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["absent", "same", "different"])
def test_tie_flag_and_output_matrix(tmp_path: Path, tied: bool, head: str) -> None:
    """5.10: an output matrix that is there is used, whatever the flag says; none at all needs the flag."""
    embedding = weights(Tiny(tied=True))[EMBEDDING]
    other = weights(Tiny(seed=9))[HEAD]
    matrix = {"absent": None, "same": embedding.clone(), "different": other}[head]
    path = tiny_llama(tmp_path / "model", tied=tied, tensors={EMBEDDING: embedding, HEAD: matrix})
    if head == "absent" and not tied:
        assert HEAD in refused(path)
        return
    used = other if head == "different" else embedding
    oracle = tiny_llama(tmp_path / "oracle", tied=False, tensors={EMBEDDING: embedding, HEAD: used.clone()})
    assert relative_error(last_logits(path), hf_logits(oracle, PROMPT)[-1]) <= 1e-5


# --- configurations


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_heads": 3}, "num_key_value_heads"),
        ({"config": {"rope_interleaved": True}}, "rope_interleaved"),
        ({"config": {"num_hidden_layers": None}}, "num_hidden_layers is missing"),
        ({"config": {"hidden_act": "relu6"}}, "relu6"),
        ({"rope": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
    ],
)
def test_a_configuration_that_is_not_understood_names_its_file(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    assert words in refused(tiny_llama(tmp_path, **options))


def test_gguf_metadata_that_is_not_understood_names_its_file(tmp_path: Path) -> None:
    assert "spiral" in refused(tiny_gguf(tmp_path, rope={"rope_type": "spiral", "factor": 2.0}))


def test_a_refused_load_leaves_nothing_that_hinders_the_next(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, shards=2)
    whole = (path / SHARD_1).read_bytes()
    (path / SHARD_1).write_bytes(whole[:-5])
    refused(path)
    (path / SHARD_1).write_bytes(whole)
    rig: Rig = build(path)
    assert rig.run([submit("p", PROMPT, 3)])["p", 0].finish == "length"
