"""Attention backends: tiles, padding, layouts, and the memory of a long prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from inferd.engine.workspace import BucketWorkspace
from inferd.plugin.contracts import AttentionBackend
from inferd.plugin.types import (
    AttentionLayer,
    Gqa,
    KVGroup,
    KVPlane,
    LayerSpec,
    Mla,
    ProbeContext,
    Reject,
    StepCounts,
    StepInputs,
)
from inferd_kernels.reference.attention import attention
from inferd_plugins.attention import tiles
from inferd_plugins.attention.reference import ReferenceAttention
from inferd_plugins.attention.specs import PLUGINS
from inferd_plugins.attention.torch import TorchAttention
from tests.model.specs import spec

torch.set_num_threads(1)
BLOCK = 4
GROUP = KVGroup((0,), (KVPlane("k", 2, 8), KVPlane("v", 2, 8)))
BACKENDS = {"reference": ReferenceAttention, "torch": TorchAttention}


def batch(lens: list[int], contexts: list[int], block: int = BLOCK) -> tuple[StepInputs, int]:
    """Return inputs with every sequence in blocks of its own, and the number of blocks."""
    widths = [-(-context // block) for context in contexts]
    order = torch.randperm(sum(widths) + 3, generator=torch.Generator().manual_seed(1)).tolist()
    tables = [[order.pop() for _ in range(width)] for width in widths]
    padded = [table + [0] * (max(widths) - len(table)) for table in tables]
    positions = [c - n + i for n, c in zip(lens, contexts, strict=True) for i in range(n)]
    inputs = StepInputs(
        token_ids=torch.zeros(sum(lens), dtype=torch.int32),
        positions=torch.tensor(positions),
        cu_seqlens=torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=torch.tensor([padded], dtype=torch.int32),
        slots=torch.zeros(1, sum(lens), dtype=torch.int64),
        sample_rows=torch.zeros(0, dtype=torch.int32),
        query_lens=lens,
        context_lens_host=contexts,
        counts=StepCounts(0, 0, len(lens)),
    )
    return inputs, sum(widths) + 3


def attend(
    backend: Any, inputs: StepInputs, num_blocks: int, window: int | None, heads: int = 4, block: int = BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the backend's output and the oracle's; slots that nobody owns hold NaN."""
    generator = torch.Generator().manual_seed(2)
    layer = AttentionLayer(0, 0, Gqa(heads, 2, 8, scale=0.4, window=window), None, None)
    q = torch.randn(len(inputs.positions), heads, 8, generator=generator)
    kv = {name: torch.full((num_blocks, block, 2, 8), float("nan")) for name in "kv"}
    want: list[torch.Tensor] = []
    row = 0
    for b, (length, context) in enumerate(zip(inputs.query_lens, inputs.context_lens_host, strict=True)):
        own = {name: torch.randn(context, 2, 8, generator=generator) for name in "kv"}
        for position in range(context):
            for name in "kv":
                kv[name][inputs.block_tables[0, b, position // block], position % block] = own[name][position]
        want.append(attention(q[row : row + length], own["k"], own["v"], scale=0.4, window=window))
        row += length
    plan = backend.plan(inputs, BucketWorkspace("cpu"))
    return backend.attend(layer, q, kv, plan), torch.cat(want)


MIXES = {
    "decode": ([1] * 5, [1, 9, 3, 17, 4]),
    "decode of one length": ([1] * 3, [9, 9, 9]),
    "verify": ([3, 3, 5], [3, 12, 9]),
    "all kinds": ([1, 1, 3, 3, 2, 40, 7, 33], [6, 31, 9, 3, 8, 40, 19, 70]),
    "one chunk": ([29], [61]),
    "whole prompt": ([50], [50]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 1, 6, 33])
@pytest.mark.parametrize("mix", MIXES)
def test_ragged_batches_equal_the_oracle(backend: str, window: int | None, mix: str) -> None:
    got, want = attend(BACKENDS[backend](), *batch(*MIXES[mix]), window)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(("short", "scores", "keys"), [(1, 8, 16), (2, 100, 30), (4, 400, 1 << 16)])
def test_any_cut_gives_the_same_result(
    monkeypatch: pytest.MonkeyPatch, window: int | None, short: int, scores: int, keys: int
) -> None:
    monkeypatch.setattr(tiles, "SHORT", short)
    monkeypatch.setattr(tiles, "MAX_SCORES", scores)
    monkeypatch.setattr(tiles, "MAX_KEYS", keys)
    lens, contexts = MIXES["all kinds"]
    pieces = tiles.cut(lens, contexts, window)
    assert sum(p.query_len * (1 if isinstance(p, tiles.Long) else len(p.contexts)) for p in pieces) == sum(lens)
    got, want = attend(TorchAttention(), *batch(lens, contexts), window)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_padding_never_exceeds_the_real_keys() -> None:
    """One long context among short ones does not pad them all to its length."""
    contexts = [10, 12, 9000, 11, 8000, 10]
    for piece in tiles.cut([1] * 6, contexts, None):
        assert isinstance(piece, tiles.Padded)
        assert piece.width * len(piece.contexts) <= 2 * sum(piece.contexts)


def test_tiles_cover_each_row_once_and_its_keys() -> None:
    chunk = tiles.Long(first=0, start_row=0, query_len=3000, low=0, context=9000)
    cut = list(chunk.tiles(None))
    assert len(cut) > 10
    assert [t.first_row for t in cut] == [0, *(t.end_row for t in cut[:-1])]
    assert cut[-1].end_row == 3000
    assert all(t.end_key == 6000 + t.end_row for t in cut)
    assert all((t.end_row - t.first_row) * t.end_key <= tiles.MAX_SCORES for t in cut)


def peak_bytes(backend: Any, length: int, context: int) -> int:
    """Return the highest sum of live allocations during one attend."""
    inputs, num_blocks = batch([length], [context], 16)
    layer = AttentionLayer(0, 0, Gqa(4, 2, 8, scale=0.4), None, None)
    kv = {name: torch.zeros(num_blocks, 16, 2, 8) for name in "kv"}
    q = torch.zeros(length, 4, 8)
    plan = backend.plan(inputs, BucketWorkspace("cpu"))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        backend.attend(layer, q, kv, plan)
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def test_memory_of_a_prompt_grows_linearly() -> None:
    """Four times the prompt, at most about four times the memory; the score matrix would be sixteen."""
    for start in (0, 512):
        small, large = (peak_bytes(TorchAttention(), n, n + start) for n in (2048, 8192))
        assert small > 100_000
        assert large < 5 * small
        assert large < 8192 * 8192


def test_the_reference_writes_the_score_matrix() -> None:
    """So that the test above is known to see one."""
    small, large = (peak_bytes(ReferenceAttention(), n, n) for n in (256, 1024))
    assert large > 10 * small


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts_and_what_they_refuse(backend: str) -> None:
    kind = BACKENDS[backend]
    layout = kind().kv_layout(GROUP, "bf16", 16)
    assert (layout.format, layout.block_size, layout.bytes_per_block) == ("bf16", 16, 16 * 2 * 2 * 8 * 2)
    for format in ("int8", "fp8"):
        with pytest.raises(ValueError, match=rf"{backend} keeps KV as bf16, fp16, fp32, not as {format}"):
            kind().kv_layout(GROUP, format, 16)
    with pytest.raises(ValueError, match="stores planes k and v, not latent"):
        kind().kv_layout(KVGroup((0,), (KVPlane("latent", 1, 64),)), "fp32", 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_probe_names_formats_and_kinds_it_lacks(backend: str) -> None:
    latent = spec(layers=(LayerSpec(Mla(4, None, 16, 8, 8, 8, scale=0.1), spec().layers[0].mlp),))
    context = ProbeContext(architecture_name="x", device="cpu", dtype="fp32", spec=latent, kv_format="int8")
    verdict = BACKENDS[backend].probe(context)
    assert isinstance(verdict, Reject)
    assert [word in " ".join(verdict.reasons) for word in ("int8", "latent")] == [True, True]


@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_narrow_caches_are_read_as_the_query_type(format: Any) -> None:
    inputs, num_blocks = batch([1, 20], [9, 20])
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[format]
    layer = AttentionLayer(0, 0, Gqa(4, 2, 8, scale=0.4), None, None)
    generator = torch.Generator().manual_seed(4)
    kv = {name: torch.randn(num_blocks, BLOCK, 2, 8, generator=generator).to(dtype) for name in "kv"}
    q = torch.randn(21, 4, 8, generator=generator)
    outs = [b().attend(layer, q, kv, b().plan(inputs, BucketWorkspace("cpu"))) for b in BACKENDS.values()]
    assert all(out.dtype == torch.float32 for out in outs)
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-5, atol=1e-5)


def test_specs_name_classes_that_exist() -> None:
    from importlib import import_module

    for plugin in PLUGINS:
        module, name = plugin.target.split(":")
        assert issubclass(getattr(import_module(module), name), BACKENDS.get(plugin.name, AttentionBackend))
