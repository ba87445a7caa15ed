"""The perplexity tool: windows of its text, and scores from log-probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import perplexity


def test_scores_are_relative_to_the_baseline() -> None:
    base = [-1.0, -2.0, -3.0]
    worse = perplexity._score("x", [-1.0, -2.0, -3.3], base)
    assert worse.perplexity > perplexity._score("float32", base, base).perplexity
    assert worse.against_float32 == pytest.approx(0.1052, abs=1e-3)
    assert worse.divergence == pytest.approx(0.1)
    assert worse.standard_error == pytest.approx(0.1)
    assert worse.verdict == "too little text to tell"
    assert perplexity._score("x", [-1.001, -2.0, -3.0], base).verdict == "within 0.3 %"
    better = perplexity._score("x", [-0.9, -1.9, -2.9], base)
    assert better.verdict == "beyond 0.3 %"  # better than the weights is a fault too


def test_a_variant_names_its_settings() -> None:
    assert perplexity._variant("a b=engine.x=1,plugins.y=z") == ("a b", ["engine.x=1", "plugins.y=z"])


@pytest.mark.smollm2
def test_the_configured_path_is_within_the_bound_of_float32(default_model: Path) -> None:
    prompts = perplexity.windows(default_model, perplexity.TEXT.read_text(), 96)[:4]
    assert [len(ids) for ids in prompts] == [96] * 4
    base, found = perplexity.compare(default_model, {"as configured": ()}, prompts)
    assert base.tokens == found.tokens == 4 * 95
    assert base.against_float32 == 0
    assert abs(found.against_float32) < 0.01  # few tokens: the tool itself holds 0.003 over the whole text
    assert 5 < base.perplexity < 200
