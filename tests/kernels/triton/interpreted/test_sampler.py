"""The sampler kernel against sorting, and its noise against the daemon's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferd.engine.sampler.filters import apply_min_p, apply_top_k, apply_top_p
from inferd.engine.sampler.noise import gumbel, row_keys
from inferd_kernels.triton.sampler import RowParams, kept_reference, noise_reference, sample, sample_reference

VOCAB = 201


def keys(rows: int) -> torch.Tensor:
    return torch.from_numpy(row_keys(np.arange(rows, dtype=np.int64) * 977, np.arange(rows, dtype=np.int64) + 3))


def params(rows: int, **changed: float) -> RowParams:
    values = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0, **changed}
    wide = {name: torch.full((rows,), value) for name, value in values.items()}
    return RowParams(wide["temperature"], wide["top_k"].int(), wide["top_p"], wide["min_p"].log(), keys(rows))


def logits(rows: int, *, ties: bool = False) -> torch.Tensor:
    x = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    return (x * 2).round() / 2 if ties else x


def test_noise_is_the_daemons() -> None:
    tokens = torch.arange(1000, dtype=torch.int32)
    torch.testing.assert_close(noise_reference(keys(20), 1000), gumbel(keys(20), tokens), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.4},
        {"top_k": 1},
        {"top_k": 20},
        {"top_k": 500},
        {"top_p": 0.7},
        {"top_p": 0.001},
        {"min_p": 0.1},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.01, "temperature": 1.6},
    ],
    ids=str,
)
def test_tokens_equal_those_of_sorting(changed: dict[str, float], ties: bool) -> None:
    x, given = logits(6, ties=ties), params(6, **changed)
    ids, peaks = sample(x, given, block=64)
    assert torch.equal(ids, sample_reference(x, given))
    assert torch.equal(peaks, x.amax(-1))


def test_each_row_has_parameters_of_its_own() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = 24
    given = RowParams(
        torch.rand(rows, generator=generator) * (torch.arange(rows) % 5 > 0),
        torch.randint(0, 60, (rows,), generator=generator).int(),
        torch.rand(rows, generator=generator),
        (torch.rand(rows, generator=generator) * 0.2).log(),
        keys(rows),
    )
    x = logits(rows, ties=True)
    ids, _ = sample(x, given, block=64)
    assert torch.equal(ids, sample_reference(x, given))
    for row in range(0, rows, 7):
        alone = RowParams(*(value[row : row + 1] for value in given))
        assert sample(x[row : row + 1], alone, block=64)[0] == ids[row]


def test_unsound_rows_are_marked_and_do_not_stop_the_others() -> None:
    x = logits(5)
    x[0, 7], x[1, 7], x[2], x[3, 1:] = float("nan"), float("inf"), float("-inf"), float("-inf")
    ids, peaks = sample(x, params(5, top_k=5, top_p=0.9), block=64)
    assert peaks[0].isnan()
    assert peaks[1] == float("inf")
    assert peaks[2] == float("-inf")
    assert ids[3] == 0
    assert ids[4] == sample_reference(x, params(5, top_k=5, top_p=0.9))[4]


def test_the_reference_keeps_what_the_daemons_filters_keep() -> None:
    x = logits(12, ties=True)
    for row in range(12):
        top_k, top_p, min_p = row * 3, 0.5 + row / 30, row / 100
        work = x[row : row + 1].clone()
        if min_p > 0:
            apply_min_p(work, torch.tensor([min_p]).log())
        if top_k > 0:
            apply_top_k(work, torch.tensor([top_k]))
        apply_top_p(work, torch.tensor([top_p]))
        assert torch.equal(
            kept_reference(x[row], top_k, top_p, float(torch.tensor(min_p).log())), work[0] > float("-inf")
        )
