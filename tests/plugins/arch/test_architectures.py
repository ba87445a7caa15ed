"""Specs and tensor rules of llama, qwen2 and qwen3 from both sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from inferd.load.checkpoint import open_checkpoint
from inferd.load.errors import LoadError
from inferd.model.reader import ParameterReader
from inferd.plugin.contracts import Architecture
from inferd.plugin.types import Accept, Gqa, ModelSpec, ProbeContext, Reject
from inferd_plugins.arch import specs
from inferd_plugins.arch.llama import Llama
from inferd_plugins.arch.qwen2 import Qwen2
from inferd_plugins.arch.qwen3 import Qwen3
from inferd_plugins.quant.gguf import GgufQuantizer
from inferd_plugins.quant.none import NoQuantizer
from tests.tiny import Tiny, tiny_gguf, tiny_llama, tiny_qwen2, tiny_qwen3, weights

ARCHITECTURES: dict[str, Architecture] = {"llama": Llama(), "qwen2": Qwen2(), "qwen3": Qwen3()}
BUILDERS = {"llama": tiny_llama, "qwen2": tiny_qwen2, "qwen3": tiny_qwen3}


def spec_of(path: Path) -> ModelSpec:
    checkpoint = open_checkpoint(path)
    return ARCHITECTURES[checkpoint.architecture_name].spec(checkpoint.config())


def reader(path: Path) -> ParameterReader:
    """Open a model the way the loader does: strict about every tensor."""
    checkpoint = open_checkpoint(path)
    architecture = ARCHITECTURES[checkpoint.architecture_name]
    spec = architecture.spec(checkpoint.config())
    quantizer = GgufQuantizer() if checkpoint.source == "gguf" else NoQuantizer()
    return ParameterReader(spec, checkpoint, architecture.tensors(spec, checkpoint.source), quantizer)


VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tied": True},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama, wide heads": {"hidden": 48, "heads": 4, "head_dim": 16},
    "llama, odd heads": {"hidden": 60, "heads": 6, "kv_heads": 3, "head_dim": 12},
    "llama, no kv heads": {"kv_heads": None},
    "qwen2": {"arch": "qwen2"},
    "qwen2 tied": {"arch": "qwen2", "tied": True, "kv_heads": 1},
    "qwen3": {"arch": "qwen3", "head_dim": 24},
    "qwen3 tied with biases": {"arch": "qwen3", "head_dim": 16, "tied": True, "attention_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_sources_give_one_spec_and_the_same_parameters(tmp_path: Path, variant: str) -> None:
    """The rows of q and k come back in order: biases included, k with its own number of heads (5.6)."""
    options = {"arch": "llama", **VARIANTS[variant]}
    arch = options["arch"]
    hf = reader(BUILDERS[arch](tmp_path / "hf", **{k: v for k, v in options.items() if k != "arch"}))
    gg = reader(tiny_gguf(tmp_path / "gguf", **options))
    norm_eps = pytest.approx(hf.spec.norm_eps, rel=1e-6)
    assert gg.spec.norm_eps == norm_eps
    assert [layer.attention for layer in gg.spec.layers] == [layer.attention for layer in hf.spec.layers]
    assert [layer.mlp for layer in gg.spec.layers] == [layer.mlp for layer in hf.spec.layers]
    for field in ("vocab_size", "hidden_size", "ropes", "trained_context", "tied_embeddings", "architecture"):
        assert getattr(gg.spec, field) == getattr(hf.spec, field)
    rules = ARCHITECTURES[arch].tensors(hf.spec, "hf")
    stored = weights(Tiny(**options))
    assert {rule.source for rule in rules if rule.target} == set(stored)
    for rule in rules:
        if rule.target:
            assert torch.equal(hf.values(rule.target), stored[rule.source])
            assert torch.equal(gg.values(rule.target), stored[rule.source]), rule.target


def test_a_llama_spec_in_full(tmp_path: Path) -> None:
    spec = spec_of(tiny_llama(tmp_path, hidden=48, heads=4, head_dim=16, kv_heads=2, norm_eps=3e-5, mlp_bias=True))
    assert spec.layers[0].attention == Gqa(4, 2, 16, scale=0.25)
    assert (spec.layers[0].mlp.inner, spec.layers[0].mlp.activation, spec.layers[0].mlp.bias) == (96, "silu", True)
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers) == (290, 48, 2)
    assert (spec.norm_eps, spec.trained_context, spec.tied_embeddings) == (3e-5, 256, False)


def test_qwen2_has_biases_on_q_k_and_v_only(tmp_path: Path) -> None:
    attention = spec_of(tiny_qwen2(tmp_path)).layers[0].attention
    assert attention == Gqa(4, 2, 16, scale=0.25, qkv_bias=True)


def test_qwen3_norms_the_heads_of_q_and_k(tmp_path: Path) -> None:
    attention = spec_of(tiny_qwen3(tmp_path / "a", head_dim=24)).layers[0].attention
    assert attention == Gqa(4, 2, 24, scale=24**-0.5, qk_norm=True)
    attention = spec_of(tiny_qwen3(tmp_path / "b", config={"head_dim": None})).layers[0].attention
    assert attention.head_dim == 128  # not hidden / heads


def test_head_sizes_that_are_derived(tmp_path: Path) -> None:
    attention = spec_of(tiny_llama(tmp_path, hidden=64, heads=4, head_dim=None, kv_heads=None)).layers[0].attention
    assert (attention.head_dim, attention.kv_heads) == (16, 4)


HEAD = "lm_head.weight"
OTHER = torch.randn(290, 64)


@pytest.mark.parametrize(
    ("tied", "head", "expected"),
    [
        (True, "absent", "embedding"),
        (True, "same", "embedding"),
        (True, "different", "head"),
        (False, "absent", "error"),
        (False, "same", "embedding"),
        (False, "different", "head"),
    ],
)
def test_tie_flag_and_output_matrix(tmp_path: Path, tied: bool, head: str, expected: str) -> None:
    """A matrix that is there is used, whatever the flag says (5.10)."""
    embedding = weights(Tiny(tied=True))["model.embed_tokens.weight"]
    stored = {"absent": None, "same": embedding.clone(), "different": OTHER}[head]
    path = tiny_llama(tmp_path, tied=tied, tensors={"model.embed_tokens.weight": embedding, HEAD: stored})
    if expected == "error":
        with pytest.raises(LoadError, match=r"lm_head.weight is missing"):
            reader(path)
        return
    opened = reader(path)
    used = opened.values("embed.weight" if opened.spec.tied_embeddings else HEAD)
    assert torch.equal(used, embedding if expected == "embedding" else OTHER)


@pytest.mark.parametrize("head", [None, OTHER])
def test_a_gguf_is_tied_when_it_has_no_output_matrix(tmp_path: Path, head: torch.Tensor | None) -> None:
    opened = reader(tiny_gguf(tmp_path, tensors={HEAD: head}))
    assert opened.spec.tied_embeddings == (head is None)
    assert opened.has(HEAD) == (head is not None)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({}, [None, None, None]),
        ({"sliding_window": 8, "max_window_layers": 0}, [None, None, None]),
        ({"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0}, [None, None, None]),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, [8, 8, 8]),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, [None, None, 8]),
        ({"use_sliding_window": True, "sliding_window": 8}, [None, None, None]),
        ({"use_sliding_window": True, "max_window_layers": 1}, [None, 4096, 4096]),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [8, None, 8],
        ),
    ],
)
def test_qwen2_windows(tmp_path: Path, config: dict[str, Any], windows: list[int | None]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    path = tiny_qwen2(tmp_path, layers=3, config=config)
    assert [layer.attention.window for layer in spec_of(path).layers] == windows
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == windows


@pytest.mark.parametrize(
    ("arch", "config", "message"),
    [
        ("llama", {"hidden_act": "relu2"}, "hidden_act 'relu2' is unknown; known are silu"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: quantised safetensors"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved is not supported"),
        ("llama", {"sliding_window": 8}, "sliding_window is not supported"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide the 4"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads must be from 1"),
        ("llama", {"num_hidden_layers": 10**12}, "num_hidden_layers must be from 1 to 1024"),
        ("llama", {"hidden_size": None}, "config.json: hidden_size is missing"),
        ("llama", {"hidden_size": "64"}, "config.json: hidden_size must be an integer, not '64'"),
        ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, "head_dim is missing"),
        ("llama", {"head_dim": 15}, "head_dim: heads of 15 channels cannot be rotated"),
        ("llama", {"attention_bias": "yes"}, "attention_bias must be true or false"),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types must name one of"),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention", "linear"]}, "layer_types must name"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window must be positive, not 0"),
    ],
)
def test_a_config_that_is_not_understood(tmp_path: Path, arch: str, config: dict[str, Any], message: str) -> None:
    path = BUILDERS[arch](tmp_path, config=config)
    with pytest.raises(ValueError, match=message):
        spec_of(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.expert_count", 8, "llama.expert_count: not understood by architecture llama"),
        ("llama.attention.sliding_window", 8, "llama.attention.sliding_window: not understood"),
        ("llama.attention.value_length", 8, "llama.attention.value_length differs from the key length 16"),
        ("llama.rope.dimension_count", 8, "llama.rope.dimension_count other than the head size"),
        ("llama.block_count", 0, "llama.block_count must be from 1 to 1024, not 0"),
        ("llama.attention.head_count_kv", 3, "llama.attention.head_count_kv: 3 does not divide"),
    ],
)
def test_gguf_metadata_that_is_not_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: int, message: str
) -> None:
    write = gguf.GGUFWriter.write_header_to_file

    def tampered(self: gguf.GGUFWriter, path: Path | None = None) -> None:
        self.kv_data[0][key] = gguf.GGUFValue(value, gguf.GGUFValueType.UINT32)
        write(self, path)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", tampered)
    with pytest.raises(ValueError, match=message):
        spec_of(tiny_gguf(tmp_path))


def test_tables_of_old_converters_are_known_but_not_read(tmp_path: Path) -> None:
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(2)}
    reader(tiny_llama(tmp_path, tensors=extra))
    with pytest.raises(LoadError, match=r"nothing reads tensor model.layers.7.self_attn"):
        reader(tiny_llama(tmp_path, tensors={"model.layers.7.self_attn.rotary_emb.inv_freq": torch.ones(8)}))


@pytest.mark.parametrize("source", ["hf", "gguf"])
def test_missing_and_left_over_tensors_are_named(tmp_path: Path, source: str) -> None:
    build = tiny_llama if source == "hf" else tiny_gguf
    gone, name = ("model.norm.weight", "model.norm.weight" if source == "hf" else "output_norm.weight")
    with pytest.raises(LoadError, match=f"tensor {name} is missing"):
        reader(build(tmp_path / "gone", tensors={gone: None}))
    with pytest.raises(LoadError, match="nothing reads tensor surprise"):
        reader(build(tmp_path / "extra", tensors={"surprise.weight": torch.ones(32, 32)}))


def test_probes_and_specs() -> None:
    for spec in specs.PLUGINS:
        plugin = ARCHITECTURES[spec.name]
        assert spec.kind == "architecture"
        assert spec.target == f"{type(plugin).__module__}:{type(plugin).__name__}"
        assert isinstance(plugin.probe(ProbeContext(spec.name, "cpu", "fp32")), Accept)
        assert plugin.probe(ProbeContext("gpt2", "cpu", "fp32")) == Reject((f"reads {spec.name}, not gpt2",))
