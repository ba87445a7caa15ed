"""The noise is the hash it says, uniform over tokens, positions and seeds, and gives softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferd_client.protocol import SamplingParams
from inferd_kernels.reference.noise import gumbel, row_keys
from tests.engine.sampler.driver import sample_rows
from tests.engine.sampler.oracle import Row, noise, softmax

torch.set_num_threads(1)
CHI_SQUARE_999 = {3: 16.3, 1: 10.8, 63: 103.4, 255: 330.5, 7: 24.3}
"""0.1 % points by degrees of freedom."""


def uniforms(seeds: np.ndarray, positions: np.ndarray, vocab: int) -> np.ndarray:
    keys = torch.from_numpy(row_keys(seeds, positions))
    values = gumbel(keys, torch.arange(vocab, dtype=torch.int32)).double().numpy()
    return np.exp(-np.exp(-values))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_noise_equals_its_definition() -> None:
    seeds = np.array([0, 1, 42, 2**63 - 1, 123456789012345678], dtype=np.int64)
    positions = np.array([0, 1, 77, 8191, 3], dtype=np.int64)
    got = gumbel(torch.from_numpy(row_keys(seeds, positions)), torch.arange(50, dtype=torch.int32))
    want = [[noise(int(s), int(p), t) for t in range(50)] for s, p in zip(seeds, positions, strict=True)]
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=2e-6)
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_uniform_along_each_counter(axis: str) -> None:
    n = 65536
    if axis == "tokens":
        values = uniforms(np.array([7]), np.array([5]), n)[0]
    elif axis == "positions":
        values = uniforms(np.full(n, 7), np.arange(n), 3)[:, 2]
    else:
        values = uniforms(np.arange(n), np.full(n, 5), 3)[:, 2]
    counts = np.histogram(values, bins=256, range=(0, 1))[0]
    assert chi_square(counts, np.full(256, n / 256)) < CHI_SQUARE_999[255]
    pairs = np.histogram2d(values[:-1], values[1:], bins=8, range=[(0, 1), (0, 1)])[0]
    assert chi_square(pairs, np.full((8, 8), (n - 1) / 64)) < CHI_SQUARE_999[63]


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    n = 20000
    base = uniforms(np.array([9]), np.array([4]), n)[0]
    for seed, position in ((10, 4), (9, 5), (4, 9), (10, 3)):
        other = uniforms(np.array([seed]), np.array([position]), n)[0]
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.025
        assert not np.isin(base[:1000], other[:1000]).any()


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.4}, {"repetition_penalty": 1.5}],
    ids=str,
)
def test_draws_follow_the_softmax_of_what_is_left(sampling: dict[str, float]) -> None:
    """Case 1.11 for the target: 20,000 positions of one seed."""
    logits = np.array([2.0, 1.5, 1.0, 0.5], dtype=np.float32)
    prompt = [0, 2]
    params = SamplingParams(**sampling)
    draws = np.zeros(4)
    for start in range(0, 20000, 2000):
        rows = [Row(logits, params, prompt=prompt, seed=1000 * start + i) for i in range(2000)]
        draws += np.bincount(sample_rows(rows).ids, minlength=4)
    probs = softmax(Row(logits, params, prompt=prompt).filtered())
    left = probs > 0
    assert draws[~left].sum() == 0
    degrees = int(left.sum()) - 1
    limit = {1: 10.8, 2: 13.8, 3: 16.3}[degrees]
    assert chi_square(draws[left], probs[left] * 20000) < limit


def test_rare_tokens_keep_their_share() -> None:
    """Resolution near 0: a token of probability 2e-4 is neither lost nor favoured."""
    logits = np.array([0.0, np.log(2e-4)], dtype=np.float32)
    keys = torch.from_numpy(row_keys(np.full(2_000_000, 3), np.arange(2_000_000)))
    scores = torch.from_numpy(logits) + gumbel(keys, torch.arange(2, dtype=torch.int32))
    hits = int((scores.argmax(-1) == 1).sum())
    assert abs(hits - 400) < 4 * 20
