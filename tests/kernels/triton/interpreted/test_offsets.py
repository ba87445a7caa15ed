"""Offsets past 2^31 elements: what lies there is found, in memory that is not there where it is not touched."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, attn_prefill
from inferd_kernels.triton.embedding import embedding_rows
from inferd_kernels.triton.gate import gate_rows
from inferd_kernels.triton.gemm_w4 import gemm_w4, pack_w4
from inferd_kernels.triton.gemm_w8 import gemm_w8, pack_w8
from inferd_kernels.triton.grouped_gemm import ExpertWeights
from inferd_kernels.triton.grouped_gemm_w4 import ExpertWeights4
from inferd_kernels.triton.kv_write import kv_write
from inferd_kernels.triton.moe import Experts, expert_product, moe_reference
from inferd_kernels.triton.moe_align import Blocks
from inferd_kernels.triton.norm import add_rms_norm, rms_norm_rows
from inferd_kernels.triton.sampler import sample
from inferd_kernels.triton.split_k import Epilogue
from tests.kernels.triton.interpreted.batches import PREFILL, batch, check, run_decode, run_prefill
from tests.kernels.triton.interpreted.memory import far_rows, sparse
from tests.kernels.triton.interpreted.test_gemm import weight4, weight8
from tests.kernels.triton.interpreted.test_sampler import params

FAR = 2**31 + 64
"""Elements; a multiple of 64, as rows are."""
F16 = torch.float16


@pytest.fixture(autouse=True)
def _in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels work on a CPU's tensors themselves; copying those onto themselves afterwards would touch all of them."""
    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_args: None)


def far_pages(kv: KVCache, ragged: Ragged, skipped: int) -> tuple[KVCache, Ragged]:
    """Return the same cache behind `skipped` pages."""
    planes = []
    for plane in kv[:2]:
        moved = sparse((skipped + len(plane)) * plane[0].numel(), plane.dtype).view(-1, *plane.shape[1:])
        moved[skipped:] = plane
        planes.append(moved)
    return KVCache(*planes), ragged._replace(block_tables=ragged.block_tables + skipped)


def test_attention_finds_far_pages() -> None:
    q, kv, ragged = batch([3, 1], [20, 33], dtype=F16)
    far, tables = far_pages(kv, ragged, FAR // kv.k[0].numel())
    scores = Scores(0.3)
    prefilled, decoded = run_prefill(q, far, tables, scores), run_decode(q, far, tables, scores, rows=3)
    check(prefilled, q, kv, ragged, scores)
    check(decoded, q, kv, ragged, scores)


def test_attention_of_far_rows() -> None:
    q, kv, ragged = batch([3], [20], dtype=F16)
    out = far_rows(torch.zeros_like(q), FAR // 2)
    attn_prefill(far_rows(q, FAR // 2), kv, ragged, Scores(0.3), out, tiles=PREFILL)
    check(out, q, kv, ragged, Scores(0.3))


def test_keys_are_stored_at_far_slots() -> None:
    joined = torch.randn(2, 4, 16).half()
    skipped = FAR // (4 * 16)
    planes = [sparse((skipped + 4) * 4 * 16, F16).view(-1, 4, 1, 16) for _ in "kv"]
    x = SimpleNamespace(q=joined[:, :2], k=joined[:, 2:3], v=joined[:, 3:])
    first = 4 * (len(planes[0]) - 1)
    kv_write(x, KVCache(*planes), torch.tensor([first + 3, first]), torch.zeros(2, dtype=torch.int64), None, None)
    assert torch.equal(planes[0][-1, [3, 0]], x.k)
    assert torch.equal(planes[1][-1, [3, 0]], x.v)


@pytest.mark.parametrize("form", ["w4", "w8"])
def test_products_of_far_rows(form: str) -> None:
    """Rows, what is added, and the output; with K in one piece and split."""
    n, k = 40, 256
    x, residual = torch.randn(2, k).half(), torch.randn(2, n).half()
    far = far_rows(x, FAR)
    for programs in (0, 4):
        tiles = {"BLOCK_M": 16, "BLOCK_N": 32, "PROGRAMS": programs, "num_warps": 4, "num_stages": 1}
        out = far_rows(torch.zeros(2, n).half(), FAR)
        added = Epilogue(None, far_rows(residual, FAR))
        if form == "w4":
            weight = pack_w4(weight4(n, k, 32, mins=True), "cpu")
            gemm_w4(far, weight, added, out=out, tiles=tiles)
            want = gemm_w4(x, weight, Epilogue(None, residual), tiles=tiles)
        else:
            weight = pack_w8(weight8("i8_channel", n, k, 0), "cpu")
            gemm_w8(far, weight, added, out=out, tiles=tiles)
            want = gemm_w8(x, weight, Epilogue(None, residual), tiles=tiles)
        assert torch.equal(out, want)


def far_experts(four: bool) -> Experts:
    """Return experts [E, N, K] of which the last lies past 2^31 elements."""
    n, k, generator = 2**15, 64, torch.Generator().manual_seed(0)
    if not four:
        codes = sparse((FAR // (n * k) + 1) * n * k, torch.int8).view(-1, n, k)
        codes[-1] = torch.randint(-9, 9, (n, k), generator=generator)
        return ExpertWeights(codes, torch.ones(len(codes), 1).expand(-1, n).contiguous())
    codes = sparse((2 * FAR // (n * k) + 1) * n * k // 2, torch.uint8).view(-1, 1, n, 32)
    codes[-1] = torch.randint(0, 256, (1, n, 32), generator=generator)
    scales = torch.ones(len(codes), 1, 1).expand(-1, 1, n).half().contiguous()
    return ExpertWeights4(codes, scales, None, (n, k), 64, 8)


@pytest.mark.parametrize("four", [False, True])
def test_products_with_far_experts(four: bool) -> None:
    weights = far_experts(four)
    count = len(weights.codes)
    assert weights.codes[:-1].numel() >= 2**31 - 64
    x, experts = torch.randn(1, 64), torch.tensor([[count - 1]], dtype=torch.int32)
    tiles = {"BLOCK_M": 16, "BLOCK_N": 2**13, "num_warps": 4, "num_stages": 1} | ({} if four else {"BLOCK_K": 64})
    blocks = Blocks(torch.tensor([0] + 15 * [1], dtype=torch.int32), experts[0], 16)
    got = expert_product(x, weights, blocks, top_k=1, num_rows=1, tiles=tiles)
    last = weights._replace(codes=weights.codes[-1:], scales=weights.scales[-1:])  # type: ignore[index]
    torch.testing.assert_close(got, moe_reference(x, last, torch.zeros_like(experts), None), rtol=1e-5, atol=1e-4)


def test_norms_gates_and_embedding_rows_of_far_rows() -> None:
    x, residual, weight = torch.randn(2, 48).half(), torch.randn(2, 48).half(), torch.rand(48)
    far = far_rows(x, FAR)
    assert torch.equal(rms_norm_rows(far, weight, 1e-5), rms_norm_rows(x, weight, 1e-5))
    for mine, theirs in zip(
        add_rms_norm(far, far_rows(residual, FAR), weight, 1e-5), add_rms_norm(x, residual, weight, 1e-5), strict=True
    ):
        assert torch.equal(mine, theirs)
    assert torch.equal(gate_rows(far, "silu"), gate_rows(x, "silu"))
    table = sparse(FAR + 64, F16).view(-1, 64)
    table[-1] = torch.randn(64).half()
    ids = torch.tensor([len(table) - 1, 0], dtype=torch.int32)
    assert torch.equal(embedding_rows(table, ids, F16), table[ids.long()])


def test_tokens_of_far_logits() -> None:
    logits = torch.randn(2, 70)
    given = params(2, top_k=9, top_p=0.8)
    far, near = sample(far_rows(logits, FAR), given, block=32), sample(logits, given, block=32)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(far, near, strict=True))
