"""Launches of every kernel at model sizes on `meta` tensors, each with the tile case it is to be compiled with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch

from inferd_kernels.triton.accept import accept
from inferd_kernels.triton.attn_decode import Splits, attn_decode, plan_splits, scratch_shapes
from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, attn_prefill
from inferd_kernels.triton.embedding import embedding_rows
from inferd_kernels.triton.gate import gate_quantized, gate_rows
from inferd_kernels.triton.gemm_w4 import Weight4, gemm_w4, half_of
from inferd_kernels.triton.gemm_w8 import Weight8, gemm_w8
from inferd_kernels.triton.grouped_gemm import ExpertWeights, grouped_gemm
from inferd_kernels.triton.grouped_gemm_w4 import ExpertWeights4, grouped_gemm_w4
from inferd_kernels.triton.kv_write import HeadNorms, RopeTables, kv_write
from inferd_kernels.triton.moe import sum_experts
from inferd_kernels.triton.moe_align import moe_align
from inferd_kernels.triton.norm import QuantizedRows, rms_norm_quantized, rms_norm_rows
from inferd_kernels.triton.sampler import RowParams, sample
from inferd_kernels.triton.split_k import CASES, Epilogue
from inferd_kernels.triton.tiling import Tiles

BF16, F32, I8, F8 = torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn
HEADS, KV_HEADS, HIDDEN, INNER, VOCAB = 32, 8, 4096, 14336, 151936
PROCESSORS = 128
"""Multiprocessors assumed where a launcher would ask the device."""


@dataclass(frozen=True)
class Launch:
    """One launcher call; `tiles` are looked up under (kernel, case) and handed to it."""

    name: str
    run: Callable[[Tiles | None], object]
    kernel: str = ""
    case: str = ""
    matrix: bool = False
    """Its main kernel must use the matrix units, and read ahead into shared memory."""
    fp8: bool = False
    """Needs fp8 types, which sm_80 lacks."""
    few: bool = False
    """Its first operand has fewer rows than the 64 that the newer matrix instructions take."""
    tma: bool = False
    """Reads boxes by the tensor memory accelerator, which GPUs before sm_90 lack."""
    integer: bool = False
    """Multiplies integers, for which Triton uses `mma.sync` on sm_100."""


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int32)


def floats(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.float32)


def cache(width: int, page: int, kind: torch.dtype = BF16) -> KVCache:
    scales = (None, None) if kind in (BF16, F32) else (floats(99, page, KV_HEADS, 1), floats(99, page, KV_HEADS, 1))
    planes = (empty(99, page, KV_HEADS, width, dtype=kind), empty(99, page, KV_HEADS, width, dtype=kind))
    return KVCache(*planes, *scales)


def ragged(num_seqs: int, num_tokens: int) -> Ragged:
    return Ragged(ints(num_seqs + 1), ints(num_seqs), ints(num_seqs, 64), 0, num_seqs, num_tokens)


def prefill_fp32(width: int) -> Launch:
    def run(tiles: Tiles | None) -> None:
        q, planes = floats(999, HEADS, width), (floats(99, 16, KV_HEADS, width), floats(99, 16, KV_HEADS, width))
        attn_prefill(q, KVCache(*planes), ragged(8, 999), Scores(0.1), torch.empty_like(q), tiles=tiles)

    return Launch(f"prefill-fp32-hd{width}", run, "attn_prefill", "fp32")


def prefill(width: int, page: int = 16, scores: Scores = Scores(0.1)) -> Launch:
    def run(tiles: Tiles | None) -> None:
        q = empty(999, HEADS, width)
        attn_prefill(q, cache(width, page), ragged(8, 999), scores, torch.empty_like(q), tiles=tiles)

    name = f"prefill-hd{width}-page{page}{'-window' if scores.window else ''}"
    return Launch(name, run, "attn_prefill", f"hd{width}", matrix=True)


def prefill_tma(width: int, page: int = 64) -> Launch:
    """With the tensor memory accelerator, which no table asks for until it is measured."""
    plain = prefill(width, page)

    def run(tiles: Tiles | None) -> None:
        assert tiles is not None
        plain.run({**tiles, "TMA": 1})

    return replace(plain, name=f"prefill-tma-hd{width}-page{page}", run=run, tma=True)


def decode(width: int, page: int = 16, kind: torch.dtype = BF16, rows: int = 1, *, dtype: torch.dtype = BF16) -> Launch:
    eight, wide = kind not in (BF16, F32), dtype == F32

    def run(tiles: Tiles | None) -> None:
        assert tiles is not None
        q = empty(8 * rows, HEADS, width, dtype=dtype)
        splits = Splits(ints(9), tiles["SPLIT"], 64)
        shapes = scratch_shapes(8, 64, rows, HEADS, width)
        scratch = (floats(*shapes[0]), floats(*shapes[1]))
        batch = ragged(8, 8 * rows)
        attn_decode(
            q,
            cache(width, page, kind),
            batch,
            Scores(0.1),
            splits,
            scratch,
            torch.empty_like(q),
            rows=rows,
            tiles=tiles,
        )

    name = f"decode-{'fp32-' if wide else ''}hd{width}-page{page}-rows{rows}"
    name += f"-{str(kind).split('.')[1]}" if eight else ""
    case = "fp32" if wide else f"hd{width}-8bit" if eight else f"hd{width}"
    few = rows * HEADS // KV_HEADS < 64
    return Launch(name, run, "attn_decode", case, matrix=not wide, fp8=kind == F8, few=few)


def rows_of(case: str) -> int:
    return int(case[1:]) if case.startswith("m") else 4096


def type_of(case: str) -> torch.dtype:
    return F32 if case == "fp32" else BF16


def spread(tiles: Tiles | None) -> dict[str, int]:
    """Turn programs a multiprocessor into programs, as the launcher does on a device."""
    assert tiles is not None
    return {**tiles, "PROGRAMS": tiles["PROGRAMS"] * PROCESSORS // 2}


def w4(case: str, *, mins: bool = False, columns: int = HIDDEN, group: int = 128) -> Launch:
    """Columns that do not fill the last block are masked in it."""
    half = half_of(columns, group)

    def run(tiles: Tiles | None) -> None:
        x = empty(rows_of(case), columns, dtype=type_of(case))
        codes = empty(-(-columns // (2 * half)), INNER, half, dtype=torch.uint8)
        planes = empty(columns // group, INNER, dtype=torch.float16)
        weight = Weight4(codes, planes, planes if mins else None, (INNER, columns), group, 0 if mins else 8)
        gemm_w4(
            x, weight, Epilogue(None, torch.empty(len(x), INNER, dtype=x.dtype, device="meta")), tiles=spread(tiles)
        )

    name = f"w4-{case}{'-mins' if mins else ''}{f'-group{group}' if group != 128 else ''}"
    name += "-tail" if columns % (2 * half) else ""
    return Launch(name, run, "gemm_w4", case, matrix=case != "fp32")


def w8(case: str, kind: torch.dtype, *, quantized: bool = False) -> Launch:
    kernel = {I8: "gemm_w8", F8: "gemm_fp8_rows" if quantized and case == "large" else "gemm_fp8"}[kind]

    def run(tiles: Tiles | None) -> None:
        m = rows_of(case)
        weight = Weight8(empty(INNER, HIDDEN, dtype=kind), floats(1, INNER), None, HIDDEN, 0)
        rows = empty(m, HIDDEN, dtype=kind if quantized else type_of(case))
        gemm_w8(QuantizedRows(rows, floats(m)) if quantized else rows, weight, dtype=type_of(case), tiles=spread(tiles))

    name = f"{'fp8' if kind == F8 else 'w8'}-{case}{'-rows' if quantized else ''}"
    return Launch(name, run, kernel, case, matrix=case != "fp32", fp8=kind == F8, integer=quantized and kind == I8)


EXPERTS, TOP_K, EXPERT_INNER, EXPERT_HIDDEN = 64, 8, 1408, 2048


def moe(case: str, kind: torch.dtype = BF16) -> Launch:
    def run(tiles: Tiles | None) -> None:
        assert tiles is not None
        tokens, floating = (8 if case == "few" else 4096), kind in (BF16, F32)
        blocks = moe_align(ints(tokens, TOP_K), EXPERTS, tiles["BLOCK_M"])
        codes = empty(EXPERTS, 2 * EXPERT_INNER, EXPERT_HIDDEN, dtype=kind)
        weights = ExpertWeights(codes, None if floating else floats(EXPERTS, 2 * EXPERT_INNER))
        x = empty(tokens, EXPERT_HIDDEN, dtype=type_of(case))
        grouped_gemm(x, weights, blocks, top_k=TOP_K, num_rows=TOP_K * tokens, tiles=tiles)

    name = f"moe-{case}-{str(kind).split('.')[1]}"
    return Launch(name, run, "moe", case, matrix=case != "fp32", fp8=kind == F8)


def moe_w4(case: str, *, mins: bool = False, columns: int = EXPERT_HIDDEN, group: int = 128) -> Launch:
    half = half_of(columns, group)

    def run(tiles: Tiles | None) -> None:
        assert tiles is not None
        tokens, n = (8 if case == "few" else 4096), 2 * EXPERT_INNER
        blocks = moe_align(ints(tokens, TOP_K), EXPERTS, tiles["BLOCK_M"])
        codes = empty(EXPERTS, -(-columns // (2 * half)), n, half, dtype=torch.uint8)
        planes = empty(EXPERTS, columns // group, n, dtype=torch.float16)
        weights = ExpertWeights4(codes, planes, planes if mins else None, (n, columns), group, 0 if mins else 8)
        x = empty(tokens, columns, dtype=type_of(case))
        grouped_gemm_w4(x, weights, blocks, top_k=TOP_K, num_rows=TOP_K * tokens, tiles=tiles)

    name = f"moe_w4-{case}{'-mins' if mins else ''}{'-tail' if columns % (2 * half) else ''}"
    return Launch(name, run, "moe_w4", case, matrix=case != "fp32")


def write(kind: torch.dtype = BF16) -> Launch:
    def run(_tiles: Tiles | None) -> None:
        joined = empty(99, HEADS + 2 * KV_HEADS, 128)
        q, k, v = joined.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        wide = empty(99, dtype=torch.int64)
        norms, rope = HeadNorms(floats(128), floats(128), 1e-6), RopeTables(floats(4096, 128), floats(4096, 128))
        kv_write(SimpleNamespace(q=q, k=k, v=v), cache(128, 16, kind), wide, wide, norms, rope)

    return Launch(f"kv_write-{str(kind).split('.')[1]}", run, fp8=kind == F8)


def plain(name: str, run: Callable[[], object], *, fp8: bool = False) -> Launch:
    return Launch(name, lambda _tiles: run(), fp8=fp8)


def embedding8() -> object:
    return embedding_rows(Weight8(empty(VOCAB, HIDDEN, dtype=I8), floats(1, VOCAB), None, HIDDEN, 0), ints(99), BF16)


def sampler() -> object:
    return sample(floats(64, VOCAB), RowParams(floats(64), ints(64), floats(64), floats(64), ints(64, 2)))


DEFAULT: tuple[Launch, ...] = (
    prefill(64),
    prefill(128),
    prefill(256),
    decode(64),
    decode(128),
    decode(128, kind=I8),
    decode(128, kind=F8),
    decode(128, rows=8),
    w4("m16"),
    w4("m64"),
    w4("large"),
    w8("m16", I8),
    w8("large", I8),
    w8("m16", I8, quantized=True),
    w8("large", I8, quantized=True),
    w8("m16", F8, quantized=True),
    w8("large", F8, quantized=True),
    moe("few"),
    moe("many"),
    moe_w4("few"),
    moe_w4("many"),
    plain("sum_experts", lambda: sum_experts(empty(99 * 8, 2048), 8, empty(99, 2048))),
    write(),
    write(I8),
    write(F8),
    plain("plan_splits", lambda: plan_splits(ragged(256, 256), ints(257), split=512, max_context=40960, window=4096)),
    plain("rms_norm", lambda: rms_norm_rows(empty(99, HIDDEN), floats(HIDDEN), 1e-6)),
    plain("rms_norm-fp8", lambda: rms_norm_quantized(empty(99, HIDDEN), floats(HIDDEN), 1e-6, F8, empty(99, HIDDEN)),
          fp8=True),
    plain("silu", lambda: gate_rows(empty(99, 2 * INNER), "silu")),
    plain("gelu-int8", lambda: gate_quantized(empty(99, 2 * INNER), "gelu", I8)),
    plain("embedding", lambda: embedding_rows(empty(VOCAB, HIDDEN), ints(99), BF16)),
    plain("embedding-int8", embedding8),
    plain("sampler", sampler),
    plain("accept", lambda: accept(empty(99, dtype=torch.int64), empty(99, dtype=torch.int64), ints(33), 4)),
)  # fmt: skip
"""What a bf16 model of Llama-3-8B shape launches, with the default tiles."""

VARIANTS: tuple[Launch, ...] = (
    prefill_fp32(64),
    prefill_fp32(128),
    prefill(80),
    *(prefill_tma(width) for width in (64, 128, 256)),
    prefill_tma(128, 128),
    *(decode(width, kind=F32, rows=rows, dtype=F32) for width in (64, 128, 256) for rows in (1, 16)),
    decode(128, kind=I8, rows=16, dtype=F32),
    w4("fp32"),
    w4("fp32", mins=True),
    w8("fp32", I8),
    w8("fp32", F8),
    moe("fp32", F32),
    moe("fp32", I8),
    moe_w4("fp32"),
    *(prefill(width, page) for width in (64, 96, 128, 256) for page in (32, 64)),
    prefill(128, 16, Scores(0.1, window=4096, softcap=50.0, sinks=floats(HEADS))),
    *(decode(width, page, kind) for width in (64, 96, 128, 256) for page in (16, 64) for kind in (BF16, I8, F8)),
    *(decode(128, rows=rows) for rows in (2, 4, 16)),
    *(w4(f"m{case}", mins=True) for case in CASES),
    *(w8(f"m{case}", kind) for case in CASES for kind in (I8, F8)),
    w8("large", F8),
    *(w8(f"m{case}", kind, quantized=True) for case in CASES[1:] for kind in (I8, F8)),
    *(w4(case, columns=HIDDEN + 32, group=32) for case in ("m16", "large")),
    w4("m16", group=16),
    *(moe(case, kind) for case in ("few", "many") for kind in (I8, F8)),
    *(moe_w4(case, mins=True, columns=EXPERT_HIDDEN + 32, group=32) for case in ("few", "many")),
    plain("gelu_tanh", lambda: gate_rows(empty(99, 2 * INNER), "gelu_tanh")),
)


def tiles_of(launch: Launch, table: Mapping[str, Mapping[str, Tiles]]) -> Tiles | None:
    """Return the tiles of a launch from a device table."""
    if not launch.kernel:
        return None
    return table[launch.kernel].get(launch.case) or table[launch.kernel]["default"]
