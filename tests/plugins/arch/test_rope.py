"""Rope parameters in every spelling give the tables of transformers (CASES.md 1.16, 1.17, 5.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inferd.load.checkpoint import open_checkpoint
from inferd.model.rope import rope_table
from inferd.plugin.types import ModelSpec, RopeSpec
from inferd_plugins.arch.llama import Llama
from inferd_plugins.arch.qwen2 import Qwen2
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen2

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}

SCALINGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn without original length": {"rope_type": "yarn", "factor": 4.0},
    "yarn with attention factor": YARN | {"attention_factor": 1.25},
    "yarn, mscale equal": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, mscale different": YARN | {"mscale": 1.3, "mscale_all_dim": 0.7},
    "yarn, betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 64, **FACTORS},
    "longrope with factor": {
        "rope_type": "longrope",
        "factor": 6.0,
        "attention_factor": 1.5,
        "original_max_position_embeddings": 512,
        **FACTORS,
    },
}


def llama_spec(path: Path) -> ModelSpec:
    checkpoint = open_checkpoint(path)
    return Llama().spec(checkpoint.config())


def tables(spec: ModelSpec, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    return rope_table(spec.ropes["main"], context, spec.trained_context)


@pytest.mark.parametrize("spelling", ["old", "new"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_tables_equal_transformers(tmp_path: Path, scaling: str, spelling: str) -> None:
    path = tiny_llama(tmp_path, rope=SCALINGS[scaling], rope_spelling=spelling, rope_theta=5e5, layers=1)
    context = 512 if scaling == "dynamic" else 256
    cos, sin = LlamaRotaryEmbedding(AutoConfig.from_pretrained(path))(torch.zeros(1), torch.arange(context)[None])
    ours = tables(llama_spec(path), context)
    assert ours[0].shape == (context, 16)
    for mine, theirs in zip(ours, (cos[0], sin[0]), strict=True):
        assert (mine - theirs).abs().max() < 2e-5 * theirs.abs().max()


def test_one_theta_in_all_spellings(tmp_path: Path) -> None:
    params = {"rope_type": "default", "rope_theta": 5e5}
    spellings: dict[str, dict[str, Any]] = {
        "old": {"rope_theta": 5e5},
        "old, integer": {"rope_theta": 500000},
        "old, empty scaling": {"rope_theta": 5e5, "rope_scaling": {}},
        "old, type": {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        "new": {"rope_theta": None, "rope_parameters": params},
        "new, type": {"rope_theta": None, "rope_parameters": {"type": "default", "rope_theta": 5e5}},
        "new, no type": {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}},
        "new and old": {"rope_theta": 5e5, "rope_parameters": params},
        "nested": {"rope_theta": None, "rope_parameters": {"full_attention": params}},
        "nested, outer theta": {"rope_theta": 5e5, "rope_parameters": {"full_attention": {"rope_type": "default"}}},
    }
    ropes = {n: llama_spec(tiny_llama(tmp_path / n, config=c, layers=1)).ropes for n, c in spellings.items()}
    for name, rope in ropes.items():
        assert rope == {"main": RopeSpec(5e5, 16)}, name


def test_theta_defaults_where_nothing_is_said(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, config={"rope_theta": None}, layers=1)
    assert llama_spec(path).ropes["main"].theta == 10000.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "rope_type 'su' is unknown; known are default, linear"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_type 'mrope' is unknown"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "'yarn' and type 'linear' contrad"),
        ({"rope_scaling": {"factor": 2.0}}, "rope type 'default' does not know factor"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be positive"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor must be a number"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "surprise": 1}}, "'yarn' does not know surprise"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"type": "longrope", **FACTORS, "long_factor": [1.0]}}, "long_factor must hold 8 positive"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}, "long_factor is missing"),
        ({"rope_scaling": [1]}, "rope_scaling must be a table"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {}}, "are both set"),
        ({"rope_parameters": {"rope_theta": 2e4}}, "rope_theta is 10000.0 and, inside the rope table, 20000.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor other than 1"),
        ({"rope_parameters": {"sliding_attention": {}}}, r"layer kinds \['sliding_attention'\] are not understood"),
        ({"rope_parameters": {"full_attention": {}, "chunked_attention": {}}}, "chunked_attention"),
        ({"rope_theta": -1.0, "rope_parameters": {}}, "rope_theta must be positive"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    path = tiny_llama(tmp_path, config=config, layers=1)
    with pytest.raises(ValueError, match=message):
        llama_spec(path)


def test_each_kind_of_layer_has_its_own_rope(tmp_path: Path) -> None:
    ropes = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    path = tiny_qwen2(tmp_path, config={"rope_theta": None, "rope_parameters": ropes, **windows})
    spec = Qwen2().spec(open_checkpoint(path).config())
    assert [(layer.attention.rope, layer.attention.window) for layer in spec.layers] == [("main", None), ("sliding", 8)]
    assert (spec.ropes["main"].theta, spec.ropes["sliding"].theta) == (1e6, 1e4)


def test_yarn_extends_the_trained_context_once(tmp_path: Path) -> None:
    before = tiny_llama(tmp_path / "a", rope={"rope_type": "yarn", "factor": 4.0}, context=64, layers=1)
    after = tiny_llama(tmp_path / "b", rope=YARN, context=256, layers=1)
    assert llama_spec(before).trained_context == llama_spec(after).trained_context == 256


@pytest.mark.parametrize("scaling", ["plain", "linear", "yarn", "yarn without original length"])
def test_gguf_metadata_gives_the_same_tables(tmp_path: Path, scaling: str) -> None:
    options: dict[str, Any] = {"rope": SCALINGS[scaling], "rope_theta": 5e5, "layers": 1}
    ours = tables(llama_spec(tiny_gguf(tmp_path / "gguf", **options)), 256)
    theirs = tables(llama_spec(tiny_llama(tmp_path / "hf", **options)), 256)
    for mine, their in zip(ours, theirs, strict=True):
        assert (mine - their).abs().max() < 1e-5


def test_llama3_divisors_of_a_gguf_give_the_same_tables(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rope": LLAMA3, "rope_theta": 5e5, "layers": 1}
    theirs = llama_spec(tiny_llama(tmp_path / "hf", **options))
    plain = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tiny_llama(tmp_path / "plain", rope_theta=5e5, layers=1)))
    scaled = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path / "hf"))
    divisors = plain.inv_freq / scaled.inv_freq
    assert divisors.max() > 7.9
    ours = llama_spec(tiny_gguf(tmp_path / "gguf", **options, tensors={"rope_freqs.weight": divisors}))
    assert ours.ropes["main"].kind == "default"
    assert ours.ropes["main"].freq_factors == tuple(divisors.tolist())
    for mine, their in zip(tables(ours, 256), tables(theirs, 256), strict=True):
        assert (mine - their).abs().max() < 2e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope": {"rope_type": "longrope"}}, "llama.rope.scaling.type 'longrope' is unknown"),
        ({"tensors": {"rope_freqs.weight": torch.ones(7)}}, "rope_freqs.weight must hold 8 positive"),
        ({"tensors": {"rope_freqs.weight": torch.zeros(8)}}, "rope_freqs.weight must hold 8 positive"),
    ],
)
def test_gguf_ropes_that_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llama_spec(tiny_gguf(tmp_path, layers=1, **options))
