"""Rotary tables against transformers' ROPE_INIT_FUNCTIONS over a grid of keys."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inferd.model.rope import rope_frequencies, rope_table
from inferd.plugin.types import RopeSpec

DIM, TRAINED = 16, 64
NUM = 8


def hf(parameters: dict[str, Any], context: int) -> tuple[torch.Tensor, float]:
    """Return frequencies and scale of transformers for a run of `context` tokens."""
    kind = parameters["rope_type"]
    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )
    if kind == "default":
        base = config.rope_parameters["rope_theta"]
        return 1.0 / (base ** (torch.arange(0, DIM, 2).float() / DIM)), 1.0
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=context)


def ours(parameters: dict[str, Any], context: int) -> tuple[torch.Tensor, float]:
    keys = dict(parameters)
    kind = keys.pop("rope_type")
    original = keys.pop("original_max_position_embeddings", None)
    keys = {k: tuple(v) if isinstance(v, list) else v for k, v in keys.items()}
    spec = RopeSpec(**{"theta": 500.0, "dim": DIM, "kind": kind, "original_context": original, **keys})
    return rope_frequencies(spec, context, TRAINED)


def grid() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = [{"rope_type": "default"}]
    cases += [{"rope_type": kind, "factor": f} for kind in ("linear", "dynamic") for f in (1.0, 2.0, 4.0)]
    scales = [{}, {"attention_factor": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.7}]
    scales += [{"mscale": 0.7, "mscale_all_dim": 1.3}, {"attention_factor": 0.5, "mscale": 2.0, "mscale_all_dim": 1.0}]
    betas = [{}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"truncate": False}, {"beta_fast": 4.0, "truncate": False}]
    for scale, beta, factor, original in itertools.product(scales, betas, (2.0, 16.0), (32, 64)):
        yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        cases.append({**yarn, **scale, **beta})
    for low, high, factor in itertools.product((1.0, 2.0), (4.0, 8.0), (4.0, 32.0)):
        llama3 = {"rope_type": "llama3", "low_freq_factor": low, "high_freq_factor": high, "factor": factor}
        cases.append({**llama3, "original_max_position_embeddings": 32})
    factors = {"short_factor": [1.0 + i / 10 for i in range(NUM)], "long_factor": [2.0 + i for i in range(NUM)]}
    for extra in ({"factor": 2.0}, {"factor": 1.0}, {"factor": 2.0, "attention_factor": 1.3}):
        cases.append({"rope_type": "longrope", "original_max_position_embeddings": 32, **factors, **extra})
    return cases


@pytest.mark.parametrize("context", [16, 32, 33, 64, 65, 160])
def test_frequencies_equal_transformers(context: int) -> None:
    cases = grid()
    assert len(cases) > 60
    for case in cases:
        (want, want_scale), (got, got_scale) = hf(case, context), ours(case, context)
        torch.testing.assert_close(got, want, rtol=2e-6, atol=0, msg=f"{case}")
        assert got_scale == pytest.approx(want_scale, rel=1e-7), case


def test_yarn_scales_are_told_apart() -> None:
    """Factor 16 alone scales by 1.277; mscale = mscale_all_dim or attention_factor 1 by nothing."""
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32}
    assert ours(yarn, 64)[1] == pytest.approx(1.277, abs=1e-3)
    assert ours({**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}, 64)[1] == 1.0
    assert ours({**yarn, "attention_factor": 1.0}, 64)[1] == 1.0


def test_dynamic_base_grows_past_the_trained_context_only() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    within, at, past = (ours(dynamic, context)[0] for context in (16, TRAINED, 2 * TRAINED))
    assert torch.equal(within, at)
    assert (past[1:] < at[1:]).all()
    assert past[0] == at[0] == 1.0


@pytest.mark.parametrize("kind", ["default", "yarn"])
def test_table_is_cos_and_sin_of_position_times_frequency(kind: Any) -> None:
    spec = RopeSpec(theta=500.0, dim=DIM, kind=kind, factor=4.0, original_context=32)
    frequencies = rope_frequencies(spec, 40, TRAINED)
    cos, sin = rope_table(spec, 40, TRAINED)
    assert cos.shape == sin.shape == (40, DIM)
    angles = torch.arange(40).double().unsqueeze(1) * frequencies.values.double()
    for table, want in ((cos, angles.cos()), (sin, angles.sin())):
        assert torch.equal(table[:, : DIM // 2], table[:, DIM // 2 :])
        torch.testing.assert_close(table[:, : DIM // 2].double(), want * frequencies.scale, rtol=0, atol=1e-5)


def test_freq_factors_divide_over_any_kind() -> None:
    factors = tuple(1.0 + i for i in range(NUM))
    for kind in ("default", "linear"):
        plain = rope_frequencies(RopeSpec(theta=500.0, dim=DIM, kind=kind, factor=2.0), 64, TRAINED)
        divided = rope_frequencies(
            RopeSpec(theta=500.0, dim=DIM, kind=kind, factor=2.0, freq_factors=factors), 64, TRAINED
        )
        torch.testing.assert_close(divided.values * torch.tensor(factors), plain.values)


def test_wrong_specs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"freq_factors: expected 8 numbers for 16 channels, found 2"):
        rope_frequencies(RopeSpec(theta=1e4, dim=DIM, freq_factors=(1.0, 2.0)), 64, TRAINED)
    with pytest.raises(ValueError, match=r"short_factor: expected 8 .* found none"):
        rope_frequencies(RopeSpec(theta=1e4, dim=DIM, kind="longrope"), 16, TRAINED)
    unknown: Any = "spiral"
    with pytest.raises(ValueError, match="'spiral' is unknown"):
        rope_frequencies(RopeSpec(theta=1e4, dim=DIM, kind=unknown), 16, TRAINED)
