"""Attention at model sizes, beside torch's own kernels and the ceilings of this run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, attn_prefill
from tests.gpu.bench import Bench
from tests.gpu.goals import Goal, at_least, at_most, failure, row
from tests.gpu.parts.cache import decoded, paged
from tests.gpu.parts.ceilings import copy_rate, matrix_rate

HEADS, KV_HEADS, PAGE = 32, 8, 16


class Prefill(NamedTuple):
    width: int
    length: int
    goal: Goal | None = None
    """As a share of the bf16 matrix rate."""
    flex: bool = False
    """Beside flex_attention too, which takes long to compile."""


class Decode(NamedTuple):
    sequences: int
    context: int
    goal: Goal | None = None
    """As a share of the copy bandwidth."""
    verify: Goal | None = None
    narrow: Goal | None = None
    """Of 8-bit KV, as a share of the time that bf16 takes."""
    flex: bool = False


VERIFY, NARROW = at_most(1.25), at_most(0.65)
PREFILL = (
    Prefill(128, 8192, at_least(0.52, 0.62), flex=True),
    Prefill(64, 8192, at_least(0.42, 0.50)),
    Prefill(128, 2048),
)
DECODE = (
    Decode(8, 16384, at_least(0.85, 0.93), VERIFY, NARROW, flex=True),
    Decode(32, 4096, at_least(0.85, 0.93), VERIFY),
    Decode(1, 32768, at_least(0.60, 0.72), VERIFY, NARROW),
    Decode(8, 4096, at_least(0.65, 0.75), VERIFY),
    Decode(1, 4096),
    Decode(1, 1024),
)


def run(bench: Bench) -> dict[str, Any]:
    copies, flops = copy_rate(bench), matrix_rate(bench)
    rows: list[dict[str, Any]] = []
    cases: list[tuple[str, Callable[[], list[dict[str, Any]]]]] = []
    cases += [
        (f"prefill hd{case.width} {case.length}", lambda case=case: prefill(bench, case, flops)) for case in PREFILL
    ]
    cases += [
        (f"decode {case.sequences}x{case.context}", lambda case=case: decode(bench, case, copies)) for case in DECODE
    ]
    cases += [("flex prefill", lambda case=case: flex_prefill(bench, case, flops)) for case in PREFILL if case.flex]
    cases += [("flex decode", lambda case=case: flex_decode(bench, case, copies)) for case in DECODE if case.flex]
    for name, measure in cases:
        if bench.mine() and bench.time_left > 0:
            print(name, flush=True)
            try:
                rows += measure()
            except Exception as error:
                rows.append(failure(name, error))
            bench.free()
    return {"copy_bytes_s": copies, "bf16_flop_s": flops, "rows": rows}


class Sequence(NamedTuple):
    """One prompt in pages, and the same keys and values in a row, [1, heads, length, width]."""

    q: torch.Tensor  # [length, heads, width]
    kv: KVCache
    batch: Ragged
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    work: float
    """Operations: two products of length^2 / 2 scores."""


def sequence(bench: Bench, case: Prefill) -> Sequence:
    length, width = bench.size(case.length, 32), case.width
    kv, batch = paged(bench, [length], [length], kv_heads=KV_HEADS, width=width, page=PAGE, dtype=bench.dtype)
    q = bench.random(length, HEADS, width)
    offsets = torch.arange(PAGE, device=q.device)
    slots = (batch.block_tables[0].long().unsqueeze(1) * PAGE + offsets).flatten()[:length]
    k, v = (plane.flatten(0, 1)[slots].transpose(0, 1)[None].contiguous() for plane in (kv.k, kv.v))
    work = 2 * 2 * length * length / 2 * HEADS * width
    return Sequence(q, kv, batch, (q.transpose(0, 1)[None].contiguous(), k, v), work)


def prefill(bench: Bench, case: Prefill, flops: float) -> list[dict[str, Any]]:
    found = sequence(bench, case)
    out = torch.empty_like(found.q)
    own = bench.seconds_of(lambda: attn_prefill(found.q, found.kv, found.batch, Scores(case.width**-0.5), out))
    label = f"prefill hd{case.width} {len(found.q)}"
    rows = [row(label, found.work / own / flops, "bf16 matrix rate", case.goal)]

    def peer() -> torch.Tensor:
        return F.scaled_dot_product_attention(*found.heads, is_causal=True, enable_gqa=True)

    for name, backend in {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}.items():
        try:
            with sdpa_kernel(backend):
                seconds = bench.seconds_of(peer)
            rows.append(row(f"{label}: torch {name}", found.work / seconds / flops, "bf16 matrix rate"))
            rows.append(row(f"{label}: time of torch {name} over ours", seconds / own, "times"))
        except RuntimeError as error:
            rows.append({"case": f"{label}: torch {name}", "value": str(error).splitlines()[0][:80]})
    return rows


def flex_prefill(bench: Bench, case: Prefill, flops: float) -> list[dict[str, Any]]:
    found = sequence(bench, case)
    length, attend = len(found.q), _flex(bench)
    mask = create_block_mask(_causal, None, None, length, length, device=bench.device)
    seconds = bench.seconds_of(lambda: attend(*found.heads, block_mask=mask, enable_gqa=True))
    label = f"prefill hd{case.width} {length}: torch flex_attention"
    return [row(label, found.work / seconds / flops, "bf16 matrix rate")]


def _causal(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def _flex(bench: Bench) -> Callable[..., Any]:
    return flex_attention if bench.dry else torch.compile(flex_attention, dynamic=False)


def decode(bench: Bench, case: Decode, copies: float) -> list[dict[str, Any]]:
    """bf16, the 8-bit formats, and a verification of 8 rows, each as time; reading K and V once is the bound."""
    sequences, context, width = bench.size(case.sequences, 1), bench.size(case.context, 64), 128
    options: dict[str, Any] = {"kv_heads": KV_HEADS, "width": width, "page": PAGE, "dtype": bench.dtype}
    lens, contexts, scores = [1] * sequences, [context] * sequences, Scores(width**-0.5)
    kv, batch = paged(bench, lens, contexts, **options)
    q = bench.random(sequences, HEADS, width)
    own = bench.seconds_of(lambda: decoded(q, kv, batch, scores))
    size = 2 * sequences * context * KV_HEADS * width * kv.k.element_size()
    label = f"decode {sequences}x{context}"
    rows = [row(label, size / own / copies, "copy bandwidth", case.goal), row(f"{label} time", own * 1e6, "us")]
    wide = bench.random(sequences * 8, HEADS, width)
    offsets = torch.arange(0, sequences * 8 + 1, 8, dtype=torch.int32, device=bench.device)
    eight = batch._replace(cu_seqlens=offsets, num_tokens=sequences * 8)
    verify = bench.seconds_of(lambda: decoded(wide, kv, eight, scores, rows=8))
    rows.append(row(f"{label} verify of 8 rows", verify / own, "of one row", case.verify))
    for kind in (torch.int8, torch.float8_e4m3fn):
        narrow, other = paged(bench, lens, contexts, eight_bit=kind, **options)
        time = bench.seconds_of(lambda narrow=narrow, other=other: decoded(q, narrow, other, scores))
        rows.append(row(f"{label} {str(kind).split('.')[1]} KV", time / own, "of bf16", case.narrow))
    return rows


def flex_decode(bench: Bench, case: Decode, copies: float) -> list[dict[str, Any]]:
    """Keys and values of equal length in a row: the easiest case there is."""
    sequences, context, width = bench.size(case.sequences, 1), bench.size(case.context, 64), 128
    q = bench.random(sequences, HEADS, 1, width)
    k, v = (bench.random(sequences, KV_HEADS, context, width) for _ in "kv")
    attend = _flex(bench)
    seconds = bench.seconds_of(lambda: attend(q, k, v, enable_gqa=True))
    label = f"decode {sequences}x{context}: torch flex_attention"
    return [row(label, (k.nbytes + v.nbytes) / seconds / copies, "copy bandwidth")]
