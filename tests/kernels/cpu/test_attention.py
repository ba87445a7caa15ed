"""The attention backend `cpu`: conformance in every tier, and one result for a row whatever runs beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferd.engine.workspace import BucketWorkspace
from inferd.plugin.conformance import check
from inferd.plugin.types import AttentionLayer, Gqa, KVFormat, KVGroup, KVPlane, Qkv, StepCounts, StepInputs
from inferd_kernels.cpu.library import Library
from inferd_plugins.attention.cpu import CpuAttention
from inferd_plugins.attention.specs import PLUGINS

WIDTH, HEADS, KV_HEADS = 64, 6, 2
FP8 = torch.float8_e4m3fn
LENGTH = 600
LOG2E = 1.4426950408889634


@pytest.mark.parametrize("threads", [1, 2])
def test_conforms(tier: str, threads: int, library: Library) -> None:
    library.set_threads(threads)
    report = check(next(spec for spec in PLUGINS if spec.name == "cpu"))
    assert report.ok, str(report)


class Cache:
    """One layer; sequence s owns the blocks from s * 50 on. All sequences hold the same projections."""

    def __init__(self, block_size: int, format: KVFormat, window: int | None, width: int = WIDTH) -> None:
        planes = tuple(KVPlane(name, KV_HEADS, width) for name in "kv")
        self.backend = CpuAttention()
        self.layout = self.backend.kv_layout(KVGroup((0,), planes, window), format, block_size)
        self.blocks = -(-LENGTH // block_size)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "fp8": FP8}[format]
        shape = (4 * self.blocks, block_size, KV_HEADS, width)
        poison = -77.0 if format == "int8" else float("nan")
        self.kv = {plane.name: torch.full(shape, poison).to(dtype) for plane in self.layout.group.planes}
        for plane in self.layout.scales:
            self.kv[plane.name] = torch.full((4 * self.blocks, block_size, plane.heads, 1), float("nan"))
        self.layer = AttentionLayer(0, 0, Gqa(HEADS, KV_HEADS, width, scale=0.125, window=window), None, None)
        generator = torch.Generator().manual_seed(3)
        self.x = [torch.randn(LENGTH, heads, width, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)]

    def step(self, *turns: tuple[int, int, int]) -> list[torch.Tensor]:
        """Run turns of (sequence, first position, tokens); return each one's output."""
        size = self.layout.block_size
        positions = torch.cat([torch.arange(first, first + count) for _, first, count in turns])
        owner = torch.cat([torch.full((count,), seq) for seq, _, count in turns])
        lens, contexts = [count for _, _, count in turns], [first + count for _, first, count in turns]
        inputs = StepInputs(
            token_ids=torch.zeros(len(positions), dtype=torch.int32),
            positions=positions,
            cu_seqlens=torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.stack(
                [torch.arange(self.blocks, dtype=torch.int32) + s * self.blocks for s, *_ in turns]
            )[None],
            slots=(owner * self.blocks * size + positions)[None],
            sample_rows=torch.zeros(0, dtype=torch.int32),
            query_lens=lens,
            context_lens_host=contexts,
            counts=StepCounts(0, 0, len(turns)),
        )
        plan = self.backend.plan(inputs, BucketWorkspace("cpu"))
        q = self.backend.write(self.layer, Qkv(*(part[positions] for part in self.x)), self.kv, plan, inputs)
        return list(self.backend.attend(self.layer, q, self.kv, plan).split(lens))


@pytest.mark.parametrize(
    ("block_size", "format"),
    [
        (16, "fp32"),
        (32, "fp32"),
        (5, "fp32"),
        (16, "bf16"),
        (5, "bf16"),
        (16, "int8"),
        (5, "int8"),
        (16, "fp8"),
        (5, "fp8"),
    ],
)
@pytest.mark.parametrize("window", [None, 270])
def test_a_row_has_the_same_bits_in_any_step(
    tier: str, block_size: int, format: KVFormat, window: int | None, library: Library
) -> None:
    """Whole prompt, chunks of several sizes, single tokens, verify rows; alone and beside others; 1 and 2 threads."""
    library.set_threads(2)
    cache = Cache(block_size, format, window)
    whole = cache.step((0, 0, LENGTH))[0]
    library.set_threads(1)
    done = 0
    while done < LENGTH:
        count = min((137, 1, 64, 5)[done % 4], LENGTH - done)
        assert torch.equal(cache.step((1, done, count))[0], whole[done : done + count]), (done, count)
        done += count
    library.set_threads(2)
    for first in (0, 255, 256, 511, 599):
        alone = cache.step((1, first, 1))[0]
        beside = cache.step((1, first, 1), (0, 590, 4), (2, 0, 40))[0]
        assert torch.equal(alone, whole[first : first + 1])
        assert torch.equal(beside, alone)
    verify = cache.step((0, 595, 5))[0]
    assert torch.equal(verify, whole[595:])


def test_the_last_thread_merges_what_all_left(library: Library) -> None:
    """Many short steps over several spans: the counters of unfinished spans always come back to zero."""
    library.set_threads(2)
    cache = Cache(16, "fp32", None)
    cache.step((0, 0, LENGTH), (1, 0, LENGTH))
    want = cache.step((0, 599, 1))[0]
    for _ in range(200):
        for got in cache.step((0, 599, 1), (1, 599, 1)):
            assert torch.equal(got, want)


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_a_byte_a_value_has_a_scale_for_each_token_and_head(tier: str, format: KVFormat) -> None:
    """Rows of very different size lose nothing to each other; zeros and what is not finite keep their meaning."""
    cache = Cache(16, format, None)
    x = cache.x[2]
    for token in range(LENGTH):
        x[token] *= 10.0 ** (token % 7 - 3)
    x[5] = 0
    cache.step((0, 0, LENGTH))
    stored = cache.kv["v_rows"][: cache.blocks].view(cache.blocks, KV_HEADS, 16, WIDTH)  # as the kernels lay it out
    scales = cache.kv["v_rows_scale"][: cache.blocks].view(cache.blocks, KV_HEADS, 16, 1)
    back = (stored.float() * scales).transpose(1, 2).reshape(-1, KV_HEADS, WIDTH)[:LENGTH]
    peak = x.abs().amax(-1, keepdim=True)
    if format == "int8":
        assert bool(((back - x).abs() <= peak / 127 * 0.501).all())
    else:  # half a step of three bits of mantissa; below 2^-6 in the scale's units steps are of 2^-9
        assert bool(((back - x).abs() <= torch.maximum(x.abs() / 16, peak / 448 / 1024) * 1.001).all())
    assert bool((back[5] == 0).all())
    x[9, 1, 3] = float("nan")
    got = cache.step((1, 0, 20))[0]
    assert bool(got[9:, HEADS // KV_HEADS :].isnan().all())
    assert bool(got[9:, : HEADS // KV_HEADS].isfinite().all())


def kept(cache: Cache) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the 8-bit cache of the first sequence stands for, keys and values [T, heads, width] in float64."""
    blocks, size, width = cache.blocks, cache.layout.block_size, cache.layer.spec.head_dim
    planes: list[torch.Tensor] = []
    for name, shape, order in (
        ("k_columns", (blocks, KV_HEADS, width, size), (0, 3, 1, 2)),
        ("v_rows", (blocks, KV_HEADS, size, width), (0, 2, 1, 3)),
    ):
        codes = cache.kv[name][:blocks].view(shape).double().permute(order)
        scales = cache.kv[f"{name}_scale"][:blocks].view(blocks, KV_HEADS, size).transpose(1, 2)
        planes.append((codes * scales.double().unsqueeze(-1)).reshape(-1, KV_HEADS, width)[:LENGTH])
    return planes[0], planes[1]


@pytest.mark.parametrize("format", ["int8", "fp8"])
@pytest.mark.parametrize(
    ("block_size", "width", "window"), [(16, 64, None), (16, 80, 100), (5, 64, 100), (16, 36, None), (16, 33, None)]
)
def test_8_bits_attend_over_exactly_what_is_stored(
    tier: str, format: KVFormat, block_size: int, width: int, window: int | None
) -> None:
    """Against numpy in float64, prompt and decode; codes and scales of fp8 are those of e4m3 as torch rounds to it.

    Where products are of bf16, queries and weights are rounded to it, and nothing else is.
    """
    cache = Cache(block_size, format, window, width)
    cache.x[1][:, :, 1::9] *= 300  # most of a head lies below a step of the largest
    whole = cache.step((0, 0, LENGTH))[0]
    single = cache.step((0, LENGTH - 1, 1))[0]
    keys, values = kept(cache)
    for back, x in zip((keys, values), cache.x[1:], strict=True):
        scale = x.abs().amax(-1, keepdim=True) / 448
        assert format == "int8" or torch.equal(back, (x / scale).to(FP8).double() * scale.double())
    exponents = cache.x[0] * (cache.layer.spec.scale * LOG2E)
    rounded = tier == "avx512bf16" and width % 2 == 0
    q = (exponents.bfloat16() if rounded else exponents).double().numpy()
    k, v = (np.repeat(plane.numpy(), HEADS // KV_HEADS, axis=1) for plane in (keys, values))
    scores = np.einsum("thd,shd->hts", q, k)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]
    scores[:, (distance < 0) | (distance >= (window or LENGTH))] = -np.inf
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want, size = (torch.from_numpy(np.einsum("hts,shd->thd", weights, x)) for x in (v, np.abs(v)))
    error = (whole.double() - want).abs()
    assert bool((error <= (2**-7 * size + 1e-5 if rounded else 3e-4 * (1 + want.abs()))).all()), float(error.max())
    assert torch.equal(single, whole[-1:])


def test_every_code_of_fp8_is_read_and_made_as_torch_does(tier: str) -> None:
    """All finite numbers, those halfway between two, and what is too small: as values of tokens that see themselves."""
    codes = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    numbers = codes[codes.isfinite()].sort().values
    halves = (numbers[1:] + numbers[:-1]) / 2
    tried = torch.cat((numbers, halves, halves * 1.001, halves * 0.999, torch.tensor([2.0**-10, -(2.0**-11), 1e-12])))
    tried = torch.nn.functional.pad(tried, (0, -len(tried) % (WIDTH - 1))).view(-1, WIDTH - 1)
    rows = torch.nn.functional.pad(tried, (1, 0), value=448.0)  # a scale of 1
    cache = Cache(16, "fp8", 1)
    cache.x[2][: len(rows)] = rows.unsqueeze(1)
    out = cache.step((0, 0, len(rows)))[0]
    torch.testing.assert_close(out[:, 0], rows.to(FP8).float(), rtol=3e-7, atol=0)
