"""Power: every ModelSpec field and rope key set wrong moves logits 100 times past the tolerance, or is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from inferd.load.errors import LoadError
from inferd.model.params import parameters
from inferd.plugin.types import DenseMlp, Gqa, LayerSpec, ModelSpec, RopeSpec
from tests.model.harness import BACKENDS, Steps, build
from tests.model.plain import draw_weights
from tests.model.specs import CONTEXT, PLAIN, ROPE, TOKENS, spec

torch.set_num_threads(1)
TOLERANCE = 1e-5
RICH = spec(
    replace(PLAIN, window=12, softcap=3.0, qk_norm=True, sinks=True, qkv_bias=True, out_bias=True),
    DenseMlp(40, bias=True),
)
UNUSED = {"architecture": "a name for people; nothing is computed from it"}


def logits(wanted: ModelSpec, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return Steps(build(wanted, weights, CONTEXT), BACKENDS["reference"]()).run([("a", TOKENS)])[0]


def moved(base: ModelSpec, wrong: ModelSpec) -> float:
    """Return by how many tolerances the logits move; infinity when loading names a tensor."""
    weights = draw_weights(base)
    want = logits(base, weights)
    try:
        got = logits(wrong, weights)
    except LoadError as error:
        named = any(name in str(error) for name in (*parameters(base), *parameters(wrong)))
        return float("inf") if named else 0.0
    return ((got - want).abs().max() / want.abs().max() / TOLERANCE).item()


def attention(base: ModelSpec = RICH, **changes: Any) -> ModelSpec:
    layers = tuple(replace(layer, attention=replace(layer.attention, **changes)) for layer in base.layers)
    return replace(base, layers=layers)


def mlp(**changes: Any) -> ModelSpec:
    return replace(RICH, layers=tuple(replace(layer, mlp=replace(layer.mlp, **changes)) for layer in RICH.layers))


MODEL: dict[str, ModelSpec] = {
    "vocab_size": replace(RICH, vocab_size=61),
    "hidden_size": replace(RICH, hidden_size=16),
    "layers": replace(RICH, layers=RICH.layers[:1]),
    "ropes": replace(RICH, ropes={"main": replace(ROPE, theta=51.0)}),
    "norm_eps": replace(RICH, norm_eps=1e-2),
    "trained_context": replace(RICH, trained_context=24),
    "tied_embeddings": replace(RICH, tied_embeddings=True),
    "norm_offset": replace(RICH, norm_offset=1.0),
    "embedding_scale": replace(RICH, embedding_scale=1.1),
    "logit_softcap": replace(RICH, logit_softcap=30.0),
}
ATTENTION: dict[str, ModelSpec] = {
    "heads": attention(heads=2),
    "kv_heads": attention(kv_heads=1),
    "head_dim": attention(head_dim=8),
    "rope": attention(rope="local"),
    "scale": attention(scale=0.26),
    "window": attention(window=13),
    "softcap": attention(softcap=None),
    "qk_norm": attention(qk_norm=False),
    "sinks": attention(sinks=False),
    "qkv_bias": attention(qkv_bias=False),
    "out_bias": attention(out_bias=False),
}
MLP: dict[str, ModelSpec] = {
    "inner": mlp(inner=39),
    "activation": mlp(activation="gelu"),
    "bias": mlp(bias=False),
}
SHORT, LONG = tuple(1.0 + i / 10 for i in range(8)), tuple(2.0 + i for i in range(8))
YARN = RopeSpec(theta=50.0, dim=16, kind="yarn", factor=4.0, original_context=16, beta_fast=0.5, beta_slow=0.1)
LLAMA3 = RopeSpec(theta=50.0, dim=16, kind="llama3", factor=4.0, original_context=64)
LONGROPE = RopeSpec(
    theta=50.0, dim=16, kind="longrope", factor=4.0, original_context=16, short_factor=SHORT, long_factor=LONG
)
ROPES: list[tuple[str, RopeSpec, dict[str, Any]]] = [
    ("theta", ROPE, {"theta": 51.0}),
    ("dim", ROPE, {"dim": 14}),
    ("kind", replace(ROPE, factor=2.0), {"kind": "linear"}),
    ("factor", replace(ROPE, kind="linear", factor=2.0), {"factor": 2.1}),
    ("factor", replace(ROPE, kind="dynamic", factor=2.0), {"factor": 2.2}),
    ("factor", YARN, {"factor": 4.4}),
    ("factor", LLAMA3, {"factor": 4.4}),
    ("factor", LONGROPE, {"factor": 4.4}),
    ("original_context", YARN, {"original_context": 24}),
    ("original_context", LLAMA3, {"original_context": 48}),
    ("original_context", LONGROPE, {"original_context": CONTEXT}),
    ("attention_factor", YARN, {"attention_factor": 1.0}),
    ("attention_factor", LONGROPE, {"attention_factor": 1.0}),
    ("beta_fast", YARN, {"beta_fast": 32.0}),
    ("beta_slow", YARN, {"beta_slow": 0.2}),
    ("mscale", replace(YARN, mscale=1.0, mscale_all_dim=1.0), {"mscale": 1.3}),
    ("mscale_all_dim", replace(YARN, mscale=1.0, mscale_all_dim=1.0), {"mscale_all_dim": 1.3}),
    ("truncate", YARN, {"truncate": False}),
    ("low_freq_factor", LLAMA3, {"low_freq_factor": 1.5}),
    ("high_freq_factor", LLAMA3, {"high_freq_factor": 6.0}),
    ("short_factor", replace(LONGROPE, original_context=CONTEXT), {"short_factor": LONG}),
    ("long_factor", LONGROPE, {"long_factor": SHORT}),
    ("freq_factors", ROPE, {"freq_factors": SHORT}),
]


@pytest.mark.parametrize("name", [*MODEL, *ATTENTION, *MLP])
def test_every_field_of_the_spec_matters(name: str) -> None:
    base = RICH
    wrong = {**MODEL, **ATTENTION, **MLP}[name]
    if name == "trained_context":  # the one field that only some rope kinds read
        base = replace(base, ropes={"main": replace(ROPE, kind="dynamic", factor=2.0)})
        wrong = replace(base, trained_context=24)
    assert moved(base, wrong) > 100


@pytest.mark.parametrize(("key", "rope", "change"), ROPES, ids=lambda value: str(value)[:24])
def test_every_rope_key_matters(key: str, rope: RopeSpec, change: dict[str, Any]) -> None:
    assert key in change
    base = spec(PLAIN, rope=rope)
    assert moved(base, replace(base, ropes={"main": replace(rope, **change)})) > 100


def test_fields_that_keep_every_shape_are_caught_by_numbers() -> None:
    """Two heads of 32 in place of four of 16 load cleanly."""
    base = spec(PLAIN)
    wrong = attention(base, heads=2, kv_heads=1, head_dim=32)
    assert 100 < moved(base, wrong) < float("inf")
    swapped = spec(layers=(LayerSpec(replace(PLAIN, window=4), DenseMlp(40)), LayerSpec(PLAIN, DenseMlp(40))))
    assert 100 < moved(swapped, replace(swapped, layers=swapped.layers[::-1])) < float("inf")
    gelu = spec(mlp=DenseMlp(40, "gelu"))
    assert 10 < moved(gelu, spec(mlp=DenseMlp(40, "gelu_tanh"))) < float("inf")


def test_no_field_is_forgotten() -> None:
    names = {f.name for f in fields(ModelSpec)}
    assert names == set(MODEL) | set(UNUSED)
    assert {f.name for f in fields(Gqa)} == set(ATTENTION)
    assert {f.name for f in fields(DenseMlp)} == set(MLP)
    assert {f.name for f in fields(RopeSpec)} == {key for key, _, _ in ROPES}
