"""Tokens chosen by the native kernel equal those of the sampler on the same logits, whatever a row asks for."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from inferd.engine.batch import SlotInit
from inferd.engine.sampler import Sampler
from inferd_client.protocol import SamplingParams
from inferd_kernels.cpu.library import Library
from inferd_kernels.cpu.linear import CpuBf16Linear, CpuDenseLinear, CpuKernel, PackedMatrix
from inferd_kernels.cpu.operators import SEGMENT_BYTES, Choices, RowInputs, choose
from inferd_kernels.cpu.program import Program
from inferd_kernels.cpu.structs import HeadArgs
from inferd_kernels.linear import RowTable
from inferd_kernels.reference.forms import Packed
from inferd_kernels.reference.noise import gumbel, row_keys
from tests.engine.sampler.driver import plain_rows

F32 = torch.float32
KERNEL = CpuDenseLinear()
WIDTH = 24


def matrix(rows: int, spread: float, seed: int = 0) -> PackedMatrix:
    """An output matrix whose logits have about this standard deviation, rounded so that some are equal."""
    values = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)) * spread / WIDTH**0.5
    weight: Packed = RowTable("dense", (rows, WIDTH), {"weight": values}, 32, 0, None)
    return KERNEL.prepare(weight, device="cpu", dtype=torch.float32)


def random_sampling(rng: random.Random) -> SamplingParams:
    def maybe(value: float, default: float) -> float:
        return value if rng.random() < 0.5 else default

    return SamplingParams(
        temperature=rng.choice([0.0, 0.05, 0.7, 1.0, 3.0]),
        top_k=int(maybe(rng.choice([1, 2, 40, 700, 10**6]), 0)),
        top_p=maybe(rng.choice([0.01, 0.5, 0.9, 0.999]), 1.0),
        min_p=maybe(rng.choice([1e-6, 0.02, 0.5]), 0.0),
        seed=rng.randrange(2**63),
    )


def enter(sampler: Sampler, slot: int, sampling: SamplingParams) -> None:
    sampler.enter(SlotInit(slot, sampling.seed or 0, sampling, 1, [1], (), ()))


def run(
    weight: PackedMatrix,
    x: torch.Tensor,
    sampler: Sampler,
    positions: np.ndarray,
    slots: list[int],
    kernel: CpuKernel = KERNEL,
) -> Choices:
    """Choose for rows x; row i runs at positions[i] and belongs to slots[i]."""
    count = len(slots)
    rows = torch.arange(count, dtype=torch.int32).flip(0).contiguous()
    stood = torch.from_numpy(positions.astype(np.int64) - 1)[rows.argsort()].contiguous()
    owners = torch.tensor(slots, dtype=torch.int32)
    masks = np.zeros(count, np.int64) if sampler.native is None else sampler.native.row_masks
    ids = torch.zeros(count, dtype=torch.int32)
    return choose(kernel, x, weight, None, RowInputs(sampler.params.choice, owners, masks, ids, stood, rows))


@pytest.mark.parametrize(("columns", "spread"), [(37, 3.0), (1000, 4.0), (5003, 0.02), (20000, 5.0)])
def test_tokens_equal_those_of_the_sampler(tier: str, columns: int, spread: float) -> None:
    rng = random.Random(columns)
    weight, count = matrix(columns, spread), 70
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(columns, count, "cpu")
    for slot in range(count):
        enter(sampler, slot, random_sampling(rng))
    slots = rng.sample(range(count), count)
    positions = np.array([rng.randrange(1, 9000) for _ in slots])
    logits = KERNEL.linear(x, weight)
    want = sampler.sample(logits, plain_rows(slots, positions.tolist()))
    got = run(weight, x, sampler, positions, slots)
    assert got.ids.tolist() == want.ids
    assert torch.equal(got.peaks, logits.amax(-1))
    sampler.params.choice["keep"] = 1
    kept = run(weight, x, sampler, positions, slots)
    assert kept.ids.tolist() == want.ids
    assert torch.equal(kept.logits, logits)
    alone = [run(weight, x[i : i + 1], sampler, positions[i : i + 1], slots[i : i + 1]).ids.item() for i in range(9)]
    assert alone == want.ids[:9]


def test_a_bf16_matrix_reads_rows_in_bf16(tier: str) -> None:
    """Several segments of columns and more rows than a piece takes: each part finds its rows and weights."""
    kernel, count = CpuBf16Linear(), 70
    values = torch.randn(1300, WIDTH, generator=torch.Generator().manual_seed(5)).bfloat16()
    weight = kernel.prepare(RowTable("dense", (1300, WIDTH), {"weight": values}, 32, 0, None), device="cpu", dtype=F32)
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(6))
    sampler = Sampler(1300, count, "cpu")
    for slot in range(count):
        enter(sampler, slot, SamplingParams(temperature=0.0))
    logits = kernel.linear(x, weight)
    got = run(weight, x, sampler, np.arange(1, count + 1), list(range(count)), kernel)
    assert torch.equal(got.ids, logits.argmax(-1))
    assert torch.equal(got.peaks, logits.amax(-1))


def test_equal_logits_go_to_the_lowest_id_and_nuclei_cut_between_them(tier: str) -> None:
    weight = matrix(1100, 1.0)
    x = torch.zeros(300, WIDTH)
    sampler = Sampler(1100, 3, "cpu")
    for slot, sampling in enumerate([{"temperature": 0.0}, {"top_p": 0.01}, {"top_k": 3}]):
        enter(sampler, slot, SamplingParams(**sampling))
    slots = [i % 3 for i in range(300)]
    positions = np.arange(1, 301)
    ids = run(weight, x, sampler, positions, slots).ids.tolist()
    assert ids == sampler.sample(torch.zeros(300, 1100), plain_rows(slots, positions.tolist())).ids
    assert set(ids[::3]) == {0}
    assert max(ids[1::3]) == 10  # the first 11 of 1,100 equals hold one per cent
    assert max(ids[2::3]) > 500  # what ties with the k-th is kept


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {}, {"top_p": 0.5}])
def test_bad_logits_are_told(library: Library, value: float, sampling: dict[str, float]) -> None:
    weight = matrix(700, 1.0)
    x = torch.randn(3, WIDTH)
    sampler = Sampler(700, 3, "cpu")
    for slot in range(3):
        enter(sampler, slot, SamplingParams(**sampling))
    good = run(weight, x, sampler, np.array([1, 2, 3]), [0, 1, 2]).ids.tolist()
    x[1] = value
    ids = run(weight, x, sampler, np.array([1, 2, 3]), [0, 1, 2]).ids.tolist()
    assert ids == [good[0], -1, good[2]]


def test_noise_is_found_where_scores_are_far_apart(tier: str) -> None:
    """One token leads by almost as much as noise can make up: skipping what cannot win must skip no winner."""
    count = 4000
    values = torch.zeros(64, WIDTH)
    values[5, 0] = 7.0
    dense = RowTable("dense", (64, WIDTH), {"weight": values}, 32, 0, None)
    weight = KERNEL.prepare(dense, device="cpu", dtype=torch.float32)
    x = torch.zeros(count, WIDTH)
    x[:, 0] = 1
    sampler = Sampler(64, 1, "cpu")
    enter(sampler, 0, SamplingParams(seed=3))
    positions = np.arange(1, count + 1)
    got = run(weight, x, sampler, positions, [0] * count).ids
    noise = gumbel(torch.from_numpy(row_keys(np.full(count, 3), positions)), torch.arange(64, dtype=torch.int32))
    assert torch.equal(got, (KERNEL.linear(x, weight) + noise).argmax(-1))
    assert 100 < int((got != 5).sum()) < 500  # 63 e^-7 of them


def test_rows_are_counted_at_replay(library: Library) -> None:
    weight, x = matrix(600, 2.0), torch.randn(5, WIDTH)
    sampler = Sampler(600, 5, "cpu")
    for slot in range(5):
        enter(sampler, slot, SamplingParams(seed=slot, temperature=0.9))
    inputs = RowInputs(
        sampler.params.choice,
        torch.arange(5, dtype=torch.int32),
        np.zeros(5, np.int64),
        torch.zeros(5, dtype=torch.int32),
        torch.arange(5, dtype=torch.int64),
        torch.arange(5, dtype=torch.int32),
    )
    program = Program()
    with program.record(), program.rows("sampled"):
        choices = choose(KERNEL, x, weight, None, inputs)
    choices.ids.fill_(-7)
    program.run(tokens=5, sequences=5, sampled=3)
    want = sampler.sample(KERNEL.linear(x, weight), plain_rows(range(5), range(1, 6))).ids
    assert choices.ids.tolist() == [*want[:3], -7, -7]
    program.run(tokens=5, sequences=5, sampled=0)
    program.run(tokens=5, sequences=5, sampled=5)
    assert choices.ids.tolist() == want


def test_the_record_of_a_segment_is_as_long_as_its_struct() -> None:
    assert SEGMENT_BYTES == 16
    assert HeadArgs.segments.size == 8
