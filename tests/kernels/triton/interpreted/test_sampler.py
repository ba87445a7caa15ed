"""The sampler kernel finds the tokens of the plain filters and noise, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from inferd_kernels.reference.noise import fixed_weights, row_keys
from inferd_kernels.reference.noise import gumbel as gumbel_reference
from inferd_kernels.triton.noise import fixed_weight, gumbel
from inferd_kernels.triton.sampler import RowParams, sample, sample_reference
from tests.kernels.triton.interpreted.memory import among_nan

VOCAB = 201


@triton.jit
def noise_kernel(p_keys, p_out, p_logits, p_weights, num_columns, top, BLOCK: tl.constexpr):
    i_row = tl.program_id(0)
    o_v = tl.arange(0, BLOCK)
    b_noise = gumbel(tl.load(p_keys + 2 * i_row), tl.load(p_keys + 2 * i_row + 1), o_v)
    tl.store(p_out + i_row * num_columns + o_v, b_noise, mask=o_v < num_columns)
    b_x = tl.load(p_logits + i_row * num_columns + o_v, mask=o_v < num_columns, other=0.0)
    tl.store(p_weights + i_row * num_columns + o_v, fixed_weight(b_x, top), mask=o_v < num_columns)


def keys(rows: int) -> torch.Tensor:
    return torch.from_numpy(row_keys(np.arange(rows, dtype=np.int64) * 977, np.arange(rows, dtype=np.int64) + 3))


def params(rows: int, **changed: float) -> RowParams:
    values = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0, **changed}
    wide = {name: torch.full((rows,), value) for name, value in values.items()}
    return RowParams(wide["temperature"], wide["top_k"].int(), wide["top_p"], wide["min_p"].log(), keys(rows))


def logits(rows: int, *, ties: bool = False) -> torch.Tensor:
    x = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    return among_nan((x * 2).round() / 2 if ties else x, 5)


def test_noise_and_weights_have_the_bits_of_the_reference() -> None:
    rows, vocab = 20, 3000
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(2)) * 30
    x[0, :3] = torch.tensor([float("-inf"), -0.0, 0.0])
    top = float(x.max())
    x[:, -1] = top
    noise, weight = torch.empty(rows, vocab), torch.empty(rows, vocab, dtype=torch.int64)
    noise_kernel[(rows,)](keys(rows), noise, x, weight, vocab, top, BLOCK=4096)  # type: ignore[arg-type]
    want = gumbel_reference(keys(rows), torch.arange(vocab, dtype=torch.int32))
    assert torch.equal(noise.view(torch.int32), want.view(torch.int32))
    assert torch.equal(weight, fixed_weights(x))


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
        {"top_p": 0.0},
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


def mixed(rows: int, seed: int) -> RowParams:
    generator = torch.Generator().manual_seed(seed)
    return RowParams(
        torch.rand(rows, generator=generator) * (torch.arange(rows) % 5 > 0) * 2,
        (torch.randint(0, 60, (rows,), generator=generator) * (torch.arange(rows) % 3 > 0)).int(),
        torch.rand(rows, generator=generator).where(torch.arange(rows) % 2 > 0, 1.0),
        (torch.rand(rows, generator=generator) * 0.2 * (torch.arange(rows) % 7 > 2)).log(),
        keys(rows),
    )


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(5, 45))])
def test_each_row_has_parameters_of_its_own(seed: int) -> None:
    rows, given = 24, mixed(24, seed)
    x = logits(rows, ties=seed % 2 == 0)
    x = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)) * (seed % 2)
    ids, _ = sample(x, given, block=64)
    assert torch.equal(ids, sample_reference(x, given))
    for row in range(0, rows, 7):
        alone = RowParams(*(value[row : row + 1] for value in given))
        assert sample(x[row : row + 1], alone, block=64)[0] == ids[row]


def test_zeros_of_both_signs_are_equals() -> None:
    x = torch.full((2, 40), -3.0)
    x[0, 5], x[0, 9], x[1, 5], x[1, 9] = 0.0, -0.0, -0.0, 0.0
    for changed in ({"top_k": 1}, {"top_p": 0.5}, {"top_p": 0.0}, {"min_p": 0.9}):
        given = params(2, **changed)
        assert torch.equal(sample(x, given, block=16)[0], sample_reference(x, given))


def test_unsound_rows_are_marked_and_do_not_stop_the_others() -> None:
    x = logits(5)
    x[0, 7], x[1, 7], x[2], x[3, 1:] = float("nan"), float("inf"), float("-inf"), float("-inf")
    given = params(5, top_k=5, top_p=0.9)
    ids, peaks = sample(x, given, block=64)
    assert peaks[0].isnan()
    assert peaks[1] == float("inf")
    assert peaks[2] == float("-inf")
    assert ids[3] == 0
    sound = RowParams(*(value[4:] for value in given))
    assert ids[4] == sample_reference(x[4:], sound)[0]
