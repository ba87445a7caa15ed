"""Every feature of ModelSpec against a naive float64 implementation, on both backends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inferd.model import kv_groups
from inferd.plugin.types import DenseMlp, LayerSpec, ProbeContext, Reject
from tests.model.harness import BACKENDS, Steps, assert_close, build
from tests.model.plain import draw_weights, plain_logits
from tests.model.specs import CONTEXT, FEATURES, PLAIN, TOKENS, spec

torch.set_num_threads(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("feature", FEATURES)
def test_feature_equals_the_naive_model(feature: str, backend: str) -> None:
    wanted = FEATURES[feature]
    weights = draw_weights(wanted)
    kind = BACKENDS[backend]
    context = ProbeContext(architecture_name="test", device="cpu", dtype="fp32", spec=wanted)
    if isinstance(kind.probe(context), Reject):
        assert (backend, "soft cap" in feature or "sinks" in feature) == ("torch", True)
        return
    want = plain_logits(wanted, weights, TOKENS, CONTEXT)
    steps = Steps(build(wanted, weights, CONTEXT), kind(), poison=True)
    whole = steps.run([("whole", TOKENS)])[0]
    assert_close(whole.double(), want)
    pieces = [steps.run([("pieces", TOKENS[a:b])])[0] for a, b in ((0, 3), (3, 12), (12, 13), (13, 14), (14, 20))]
    assert_close(torch.cat(pieces).double(), want)


def test_torch_rejects_what_it_lacks_with_reasons() -> None:
    for feature, word in (("soft cap", "soft-capped"), ("sinks", "sinks")):
        context = ProbeContext(architecture_name="test", device="cpu", dtype="fp32", spec=FEATURES[feature])
        verdict = BACKENDS["torch"].probe(context)
        assert isinstance(verdict, Reject)
        assert word in " ".join(verdict.reasons)
        assert not isinstance(BACKENDS["reference"].probe(context), Reject)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chunks", [(9,), (2, 3, 4), (1,) * 9, (8, 1)])
def test_window_sees_itself_and_the_three_before(backend: str, chunks: tuple[int, ...]) -> None:
    """Window 4 in one layer: distance 3 matters, distance 4 does not (case 1.13)."""
    one_layer = spec(layers=(LayerSpec(replace(PLAIN, window=4), DenseMlp(40)),))
    weights = draw_weights(one_layer)

    def last_logits(tokens: list[int]) -> torch.Tensor:
        steps = Steps(build(one_layer, weights, CONTEXT), BACKENDS[backend]())
        start, logits = 0, torch.empty(0)
        for length in chunks:
            logits = steps.run([("a", tokens[start : start + length])])[0]
            start += length
        return logits[-1]

    base = TOKENS[:9]
    want = last_logits(base)
    for distance, matters in ((1, True), (2, True), (3, True), (4, False), (5, False)):
        changed = list(base)
        changed[8 - distance] = 59 - changed[8 - distance]
        moved = (last_logits(changed) - want).abs().max().item()
        assert (moved > 1e-3) == matters, f"distance {distance} moved logits by {moved}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("prompt", [6, 7, 8, 9])
def test_decoding_across_the_window(backend: str, prompt: int) -> None:
    """Window 8: entries 1..8 are kept until the ninth arrives (case 1.12)."""
    windowed = spec(replace(PLAIN, window=8))
    weights = draw_weights(windowed)
    want = plain_logits(windowed, weights, TOKENS[:14], CONTEXT)
    steps = Steps(build(windowed, weights, CONTEXT), BACKENDS[backend](), poison=True)
    steps.run([("a", TOKENS[:prompt])])
    for position in range(prompt, 14):
        got = steps.run([("a", TOKENS[position : position + 1])])[0]
        assert_close(got.double(), want[position : position + 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_behind_the_window_are_never_read(backend: str) -> None:
    windowed = spec(replace(PLAIN, window=5))
    weights = draw_weights(windowed)
    want = plain_logits(windowed, weights, TOKENS, CONTEXT)
    steps = Steps(build(windowed, weights, CONTEXT), BACKENDS[backend]())
    steps.run([("a", TOKENS[:12])])
    for layer in steps.kv.values():
        for plane in layer.values():
            for position in range(12 - 4):
                plane[steps.tables["a"][position // 4], position % 4] = float("nan")
    got = steps.run([("a", TOKENS[12:])])[0]
    assert_close(got.double(), want[12:])


def test_groups_gather_layers_of_like_planes_and_window() -> None:
    groups = kv_groups(FEATURES["local and global layers"])
    assert [(g.layers, g.window) for g in groups] == [((0, 2), 4), ((1,), None)]
    groups = kv_groups(FEATURES["layers of different heads"])
    assert [(g.layers, g.planes[0].heads) for g in groups] == [((0,), 3), ((1,), 1)]
