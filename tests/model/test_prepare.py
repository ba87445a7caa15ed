"""Weights from the cache of repacked ones are the weights of the checkpoint, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inferd.load.repack_cache import RepackCache
from inferd.model.build import build_decoder
from inferd.model.decoder import Decoder
from inferd.model.reader import ParameterReader
from inferd.plugin.types import ModelSpec
from inferd_kernels.cpu.library import why_missing
from inferd_kernels.linear import default_kernels
from inferd_plugins.arch.llama import Llama
from inferd_plugins.quant.gguf import GgufQuantizer
from inferd_plugins.quant.none import NoQuantizer
from tests.model.harness import ARCHITECTURES
from tests.model.plain import MemoryCheckpoint, draw_weights, own_rules
from tests.model.specs import CONTEXT, FEATURES

pytestmark = pytest.mark.skipif(bool(why_missing()), reason="the CPU kernels are not built")

SPECS = ("plain", "tied, scaled, offset", "biases", "qk norm")


@pytest.fixture
def cache(tmp_path: Path) -> RepackCache:
    return RepackCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parameters that were read from the checkpoint."""
    names: list[str] = []
    packed = ParameterReader.packed

    def watched(self: ParameterReader, name: str) -> Any:
        names.append(name)
        return packed(self, name)

    monkeypatch.setattr(ParameterReader, "packed", watched)
    return names


def build(spec: ModelSpec, weights: dict[str, torch.Tensor], path: Path, cache: RepackCache | None) -> Decoder:
    checkpoint: Any = MemoryCheckpoint(weights)
    checkpoint.path = path
    decoder = build_decoder(
        spec,
        checkpoint,
        own_rules(spec),
        NoQuantizer(),
        device="cpu",
        dtype=torch.float32,
        context=CONTEXT,
        kernels=default_kernels("native"),
        cache=cache,
    )
    if cache is not None:
        cache.wait()
    return decoder


def data(decoder: Decoder) -> list[torch.Tensor]:
    """Everything that is multiplied or looked up."""
    assert decoder.embed is not None
    assert decoder.head is not None
    linears = [decoder.head]
    for block in decoder.blocks:
        linears += [*block.attention.qkv.parts, block.attention.out, *block.mlp.gate_up.parts, block.mlp.down]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return [decoder.embed.table.data, *(linear.weight.data for linear in linears), *biases]


@pytest.mark.parametrize("name", SPECS)
def test_a_second_load_reads_no_matrix(name: str, cache: RepackCache, read: list[str], tmp_path: Path) -> None:
    spec = FEATURES[name]
    weights = draw_weights(spec)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"content")
    plain = build(spec, weights, model, None)
    first = build(spec, weights, model, cache)
    read.clear()
    second = build(spec, weights, model, cache)
    assert not [name for name in read if len(weights[name].shape) > 1]
    for decoder in (first, second):
        assert all(torch.equal(a, b) for a, b in zip(data(decoder), data(plain), strict=True))
        assert decoder.weight_bytes == plain.weight_bytes
        assert decoder.weights_note == plain.weights_note
        assert decoder.rounds_activations == plain.rounds_activations
    assert spec.tied_embeddings == (second.embed.table is second.head.weight)


def test_another_spec_of_the_same_file_is_made_anew(cache: RepackCache, read: list[str], tmp_path: Path) -> None:
    spec = FEATURES["plain"]
    weights = draw_weights(spec)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"content")
    build(spec, weights, model, cache)
    read.clear()
    build(replace(spec, norm_eps=1e-6), weights, model, cache)
    assert "layers.0.attn.q.weight" in read


@pytest.mark.smollm2
def test_the_default_model_maps_the_same_bytes(default_model: Path, cache: RepackCache, read: list[str]) -> None:
    from inferd.load.checkpoint import open_checkpoint

    def load(cache: RepackCache | None) -> Decoder:
        checkpoint = open_checkpoint(default_model)
        spec = ARCHITECTURES[checkpoint.architecture_name]().spec(checkpoint.config())
        rules = Llama().tensors(spec, checkpoint.source)
        options = {"device": "cpu", "dtype": torch.float32, "context": 256, "kernels": default_kernels("native")}
        return build_decoder(spec, checkpoint, rules, GgufQuantizer(), cache=cache, **options)

    plain = load(cache)
    cache.wait()
    read.clear()
    mapped = load(cache)
    assert {name.split(".")[-2] for name in read} == {"attn_norm", "mlp_norm", "norm"}
    assert all(torch.equal(a, b) for a, b in zip(data(mapped), data(plain), strict=True))
    assert cache.size_of(default_model) >= plain.weight_bytes // 2
