"""attn_prefill and attn_decode: ragged batches, every flag, awkward sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from inferd_kernels.triton.attn_decode import plan_splits
from inferd_kernels.triton.attn_prefill import Ragged, Scores, attn_prefill
from tests.kernels.triton.interpreted.batches import PREFILL, batch, check, run_decode, run_prefill

F32, F16, I8, F8 = torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    heads: tuple[int, int]
    width: int
    page: int
    dtype: torch.dtype
    eight_bit: torch.dtype | None
    window: int | None
    softcap: float | None
    sinks: bool


def sample_cases(count: int) -> list[Case]:
    """Return random combinations in which every value of every flag occurs."""
    rng = random.Random(7)
    axes = {
        "heads": [(4, 2), (3, 1), (7, 7), (16, 2), (9, 3)],
        "width": [16, 24, 64, 96],
        "page": [16, 32, 64, 4],
        "dtype": [F32, F16],
        "eight_bit": [None, None, I8, F8],
        "window": [None, 1, 7, 40],
        "softcap": [None, 3.0],
        "sinks": [False, True],
    }
    columns = {name: [values[i % len(values)] for i in range(count)] for name, values in axes.items()}
    for values in columns.values():
        rng.shuffle(values)
    return [Case(**{name: values[i] for name, values in columns.items()}) for i in range(count)]


CASES = sample_cases(36)
GRID = [pytest.param(case, id=str(i), marks=pytest.mark.full if i >= 10 else ()) for i, case in enumerate(CASES)]


def scores_of(case: Case) -> Scores:
    sinks = torch.linspace(-1, 2, case.heads[0]) if case.sinks else None
    return Scores(0.3, case.window, case.softcap, sinks)


def batch_of(case: Case, lens: list[int], contexts: list[int]):
    heads, kv_heads = case.heads
    return batch(
        lens,
        contexts,
        heads=heads,
        kv_heads=kv_heads,
        width=case.width,
        page=case.page,
        dtype=case.dtype,
        eight_bit=case.eight_bit,
    )


@pytest.mark.parametrize("case", GRID)
def test_prefill_equals_the_reference(case: Case) -> None:
    """Whole prompts, a chunk behind a long context, a sequence of one row."""
    made = batch_of(case, [7, 20, 1], [7, 41, 30])
    check(run_prefill(*made, scores_of(case)), *made, scores_of(case))


@pytest.mark.parametrize("case", GRID)
def test_decode_equals_the_reference(case: Case) -> None:
    """Several rows a sequence, one that ends on a split, one with nothing to do (a padding row of a graph)."""
    made = batch_of(case, [1, 3, 0, 2], [70, 64, 5, 9])
    check(run_decode(*made, scores_of(case), rows=3), *made, scores_of(case))


def test_head_widths_of_models() -> None:
    for width in (128, 256):
        made = batch([3], [19], heads=2, kv_heads=1, width=width)
        check(run_prefill(*made, Scores(0.1)), *made, Scores(0.1))
        check(run_decode(*made, Scores(0.1), rows=3), *made, Scores(0.1))


@pytest.mark.parametrize("page", [16, 32, 8])
def test_whole_tiles_read_as_boxes(page: int) -> None:
    """By descriptors of the cache, where a page holds a tile; masked tiles and small pages as ever."""
    for width, window, eight_bit in ((16, None, None), (64, 30, None), (16, None, I8)):
        q, kv, ragged = batch([7, 33, 1], [40, 70, 50], width=width, page=page, eight_bit=eight_bit)
        scores, out = Scores(0.3, window), torch.full_like(q, float("nan"))
        attn_prefill(q, kv, ragged, scores, out, tiles=PREFILL | {"TMA": 1})
        check(out, q, kv, ragged, scores)


def test_sixteen_rows_of_a_sequence_take_several_row_tiles() -> None:
    made = batch([16, 5], [50, 5], heads=16, kv_heads=2)
    check(run_decode(*made, Scores(0.2), rows=16), *made, Scores(0.2))


def test_a_launch_serves_part_of_a_batch() -> None:
    """Prefill rows behind decode rows, as a mixed step has them."""
    q, kv, whole = batch([1, 1, 6, 9], [9, 33, 6, 25])
    decode = whole._replace(num_seqs=2, num_tokens=2)
    prefill = whole._replace(first=2, num_seqs=2, num_tokens=15)
    parts = run_decode(q, kv, decode, Scores(0.2), rows=1)
    check(torch.cat((parts[:2], run_prefill(q, kv, prefill, Scores(0.2))[2:])), q, kv, whole, Scores(0.2))
    assert parts[2:].isnan().all()


def test_decode_does_not_depend_on_the_batch() -> None:
    """A sequence alone gives the same bits as among others, in graphs with padding too."""
    q, kv, whole = batch([1, 1, 1], [100, 9, 65])
    together = run_decode(q, kv, whole, Scores(0.2, window=50), rows=1)
    for b in range(3):
        alone = whole._replace(first=b, num_seqs=1, num_tokens=1)
        assert torch.equal(run_decode(q, kv, alone, Scores(0.2, window=50), rows=1)[b], together[b])


def test_verify_rows_equal_decodes() -> None:
    """Row j of a verification sees what a decode at its position would see, split by split."""
    q, kv, whole = batch([4], [67])
    rows = run_decode(q, kv, whole, Scores(0.2), rows=4)
    for j in range(4):
        one = whole._replace(
            cu_seqlens=torch.tensor([0, 1], dtype=torch.int32), context_lens=whole.context_lens - 3 + j
        )
        assert torch.equal(run_decode(q[j : j + 1], kv, one, Scores(0.2), rows=1)[0], rows[j])


@pytest.mark.parametrize("eight_bit", [None, I8])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (4, None), (None, 2.0), (4, 2.0)])
def test_lse_is_the_log_of_the_denominator(
    eight_bit: torch.dtype | None, window: int | None, softcap: float | None
) -> None:
    """Of scores as they are after scales, cap and window, sinks included."""
    q, kv, ragged = batch([5], [12], eight_bit=eight_bit)
    lse, out = torch.full((5, 4), float("nan")), torch.empty_like(q)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    attn_prefill(q, kv, ragged, Scores(0.3, window, softcap, sinks), out, lse=lse, tiles=PREFILL)
    slots = (ragged.block_tables[0, 0] * 16).long() + torch.arange(12)
    keys = kv.k.flatten(0, 1)[slots].float()
    keys = keys if kv.k_scale is None else keys * kv.k_scale.flatten(0, 1)[slots]
    scores = torch.einsum("thd,shd->ths", q, keys.repeat_interleave(2, dim=1)) * 0.3
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    behind = torch.arange(7, 12).unsqueeze(1) - torch.arange(12)
    seen = (behind >= 0) & (behind < (window or 12))
    scores = scores.masked_fill(~seen.unsqueeze(1), float("-inf"))
    want = torch.cat((scores, sinks.view(1, 4, 1).expand(5, 4, 1)), -1).logsumexp(-1)
    torch.testing.assert_close(lse, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 40])
def test_splits_are_counted_on_the_device(window: int | None) -> None:
    """Aligned runs of 32 keys that some row sees; sequences without rows have none."""
    lens, contexts = [1, 3, 0, 2, 1], [70, 64, 500, 33, 200]
    tables = torch.zeros(5, 1, dtype=torch.int32)
    starts = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32)
    for first, count in ((0, 5), (1, 3)):
        ragged = Ragged(starts, torch.tensor(contexts, dtype=torch.int32), tables, first, count, 7)
        offsets = torch.full((count + 1,), -1, dtype=torch.int32)
        splits = plan_splits(ragged, offsets, split=32, max_context=512, window=window)
        seen = [
            range(max(0, contexts[b] - lens[b] - window + 1) if window else 0, contexts[b] if lens[b] else 0)
            for b in range(first, first + count)
        ]
        counts = [len({key // 32 for key in keys}) for keys in seen]
        assert offsets.tolist() == [0, *torch.tensor(counts).cumsum(0).tolist()]
        assert splits.max_splits >= max(counts)
