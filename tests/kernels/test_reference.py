"""The reference functions against maths written out in another way."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferd_kernels.reference.attention import attention, gather_blocks, visible
from inferd_kernels.reference.kv_write import norm_rope_scatter
from inferd_kernels.reference.rope import apply_rope, rotation

torch.set_num_threads(1)


def tables(positions: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(positions).float(), 0.7 ** torch.arange(dim // 2).float())
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def test_rope_turns_pairs_of_channels_as_complex_numbers() -> None:
    cos, sin = tables(9, 6)
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 3, 8, 3])
    out = apply_rope(x, rotation(cos, sin, positions))
    pairs = torch.complex(x[..., :3], x[..., 3:6])
    turns = torch.polar(torch.ones(4, 3), positions.float().unsqueeze(1) * 0.7 ** torch.arange(3).float())
    turned = pairs * turns.unsqueeze(1)
    torch.testing.assert_close(out[..., :6], torch.cat((turned.real, turned.imag), dim=-1))
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert torch.equal(sin, tables(9, 6)[1])  # the tables are not written to


def test_scores_depend_on_distance_only() -> None:
    cos, sin = tables(40, 8)
    q, k = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(2)).unbind(0)

    def score(query: int, key: int) -> float:
        turned = [apply_rope(x, rotation(cos, sin, torch.tensor([p]))) for x, p in ((q, query), (k, key))]
        return float((turned[0] * turned[1]).sum())

    assert score(30, 25) == pytest.approx(score(7, 2), abs=1e-5)
    assert score(30, 25) != pytest.approx(score(7, 3), abs=1e-3)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_visible_admits_itself_and_window_less_one_before(window: int | None) -> None:
    mask = visible(3, 7, window)
    for row in range(3):
        for key in range(7):
            distance = 4 + row - key
            assert mask[row, key] == (distance >= 0 and (window is None or distance < window))


def test_attention_equals_sums_written_out() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(n, h, 4, generator=generator)
        for n, h in (
            (
                2,
                6,
            ),
            (5, 2),
            (5, 2),
        )
    )
    sinks = torch.randn(6, generator=generator)
    out = attention(q, k, v, scale=0.3, window=4, softcap=2.0, sinks=sinks)
    for t in range(2):
        for h in range(6):
            seen = [s for s in range(5) if 0 <= 3 + t - s < 4]
            scores = [2.0 * math.tanh(0.3 * float(q[t, h] @ k[s, h // 3]) / 2.0) for s in seen]
            total = sum(map(math.exp, scores)) + math.exp(float(sinks[h]))
            want = sum(math.exp(score) / total * v[s, h // 3] for s, score in zip(seen, scores, strict=True))
            torch.testing.assert_close(out[t, h], want)


def test_gather_reads_no_slot_after_the_length() -> None:
    plane = torch.arange(6 * 4, dtype=torch.float32).view(6, 4, 1, 1)
    got = gather_blocks(plane, torch.tensor([4, 1, 0], dtype=torch.int32), 6)
    assert got.flatten().tolist() == [16, 17, 18, 19, 4, 5]


@pytest.mark.parametrize("normed", [False, True])
def test_write_norms_rotates_and_scatters(normed: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    cos, sin = tables(20, 8)
    weight = torch.rand(8, generator=generator) + 0.5 if normed else None
    layer = SimpleNamespace(group=1, cos=cos, sin=sin, norm_eps=1e-6, q_norm=weight, k_norm=weight)
    x: Any = SimpleNamespace(**{n: torch.randn(3, 2, 8, generator=generator) for n in "qkv"})
    positions, slots = torch.tensor([5, 6, 0]), torch.tensor([[0, 0, 0], [9, 2, 7]])
    kv = {n: torch.full((3, 4, 2, 8), float("nan")) for n in "kv"}
    q = norm_rope_scatter(layer, x, kv, SimpleNamespace(positions=positions, slots=slots))

    def wanted(values: torch.Tensor) -> torch.Tensor:
        if weight is not None:
            values = values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        first, second = values[..., :4], values[..., 4:]
        c, s = cos[positions].unsqueeze(1)[..., :4], sin[positions].unsqueeze(1)[..., :4]
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1)

    torch.testing.assert_close(q, wanted(x.q))
    torch.testing.assert_close(kv["k"].view(12, 2, 8)[slots[1]], wanted(x.k))
    assert torch.equal(kv["v"].view(12, 2, 8)[slots[1]], x.v)
    assert int(kv["k"].isnan().view(12, -1).all(-1).sum()) == 9


def test_a_layer_without_rope_keeps_its_vectors() -> None:
    layer = SimpleNamespace(group=0, cos=None, sin=None, norm_eps=1e-6, q_norm=None, k_norm=None)
    x: Any = SimpleNamespace(**{n: torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(6)) for n in "qkv"})
    kv = {n: torch.zeros(1, 4, 1, 4, dtype=torch.bfloat16) for n in "kv"}
    inputs = SimpleNamespace(positions=torch.tensor([0, 1]), slots=torch.tensor([[2, 3]]))
    assert torch.equal(norm_rope_scatter(layer, x, kv, inputs), x.q)
    assert torch.equal(kv["k"][0, 2:], x.k.bfloat16())
