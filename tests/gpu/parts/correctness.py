"""Every kernel against its torch reference, in float32 or float64, with fresh random inputs each run."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from inferd.plugin.types import PackedWeight
from inferd_kernels.triton.accept import accept, accept_reference
from inferd_kernels.triton.attn_prefill import Scores, attend_reference, attn_prefill
from inferd_kernels.triton.embedding import embedding_reference, embedding_rows
from inferd_kernels.triton.gate import gate_quantized, gate_reference, gate_rows, quantize_rows
from inferd_kernels.triton.gemm_fp8 import gemm_fp8
from inferd_kernels.triton.gemm_w4 import gemm_w4, gemm_w4_reference, pack_w4
from inferd_kernels.triton.gemm_w8 import gemm_w8, gemm_w8_reference, pack_w8
from inferd_kernels.triton.grouped_gemm import ExpertWeights
from inferd_kernels.triton.grouped_gemm_w4 import pack_experts_w4
from inferd_kernels.triton.kv_write import HeadNorms, RopeTables, kv_write, kv_write_reference
from inferd_kernels.triton.moe import Experts, expert_product, moe_reference, moe_tiles
from inferd_kernels.triton.moe_align import moe_align
from inferd_kernels.triton.norm import quantize_rows_reference, rms_norm_quantized, rms_norm_reference, rms_norm_rows
from inferd_kernels.triton.sampler import RowParams, sample, sample_reference
from inferd_kernels.triton.split_k import Epilogue
from tests.gpu.bench import Bench
from tests.gpu.goals import check, failure
from tests.gpu.parts.cache import decoded, paged

Case = tuple[str, Callable[[], float], float]
"""Name, what measures the relative error, the bound."""

BOUND = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
EIGHT = (torch.int8, torch.float8_e4m3fn)


def run(bench: Bench) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for name, measure, bound in cases(bench):
        if not bench.mine():
            continue
        if bench.time_left < 0:
            rows.append(check(name, False, "not run: out of time"))
            continue
        print(name, flush=True)
        try:
            error = measure()
            rows.append(check(name, error <= bound, error) | {"goal": f"<= {bound:g}"})
        except Exception as problem:
            traceback.print_exc()
            rows.append(failure(name, problem))
    return {"rows": rows}


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest error over the largest value; infinite where the output is not finite."""
    got, want = got.double(), want.double()
    if not torch.isfinite(got).all():
        return float("inf")
    return float((got - want).abs().max() / want.abs().max().clamp(min=1e-9))


def cases(bench: Bench) -> Iterator[Case]:
    """Which cases there are depends on the seed alone, not on what ran before: processes share them."""
    rng = random.Random(bench.seed)
    yield from attention_cases(bench, rng)
    yield from write_cases(bench)
    yield from gemm_cases(bench, rng)
    yield from moe_cases(bench)
    yield from row_cases(bench)
    yield from sampler_cases(bench)


def attention_cases(bench: Bench, rng: random.Random) -> Iterator[Case]:
    widths = [64, 128] if bench.dry else [64, 96, 128, 256]
    for width in widths:
        for page in (16,) if bench.dry else (16, 64):
            for kind in (None, *EIGHT):
                dtype = torch.float32 if bench.dry else rng.choice([torch.bfloat16, torch.float16])
                heads = rng.choice([(32, 8), (16, 16), (9, 3), (14, 2)]) if not bench.dry else (4, 2)
                window = rng.choice([None, None, rng.randrange(1, 700)])
                sinks = bench.random(heads[0], dtype=torch.float32) if rng.random() < 0.3 else None
                scores = Scores(width**-0.5, window, rng.choice([None, 20.0]), sinks)
                longest = bench.size(1500, 40)
                contexts = [rng.randrange(1, longest) for _ in range(bench.size(6, 2))]
                options = {"kv_heads": heads[1], "width": width, "page": page, "dtype": dtype, "eight_bit": kind}
                seed = rng.randrange(1 << 30)
                label = f"hd{width} page{page} {str(kind or dtype).split('.')[1]} {heads} w{window}"

                def prefill(
                    contexts: list[int] = contexts,
                    scores: Scores = scores,
                    heads: Any = heads,
                    options: Any = options,
                    seed: int = seed,
                ) -> float:
                    own = random.Random(seed)
                    lens = [own.randrange(1, context + 1) for context in contexts]
                    kv, batch = paged(bench, lens, contexts, poison=True, **options)
                    q = bench.random(sum(lens), heads[0], options["width"], dtype=options["dtype"])
                    out = torch.empty_like(q)
                    attn_prefill(q, kv, batch, scores, out)
                    return relative(out, attend_reference(q.float(), kv, batch, scores))

                def decode(
                    contexts: list[int] = contexts,
                    scores: Scores = scores,
                    heads: Any = heads,
                    options: Any = options,
                    seed: int = seed,
                ) -> float:
                    own = random.Random(seed)
                    most = own.choice([1, 4, 8, 16])
                    lens = [own.randrange(0, min(most, context) + 1) for context in contexts]
                    lens[0] = 1
                    kv, batch = paged(bench, lens, contexts, poison=True, **options)
                    q = bench.random(sum(lens), heads[0], options["width"], dtype=options["dtype"])
                    out = decoded(q, kv, batch, scores, rows=most)
                    return relative(out, attend_reference(q.float(), kv, batch, scores))

                yield f"prefill {label}", prefill, BOUND[dtype]
                yield f"decode {label}", decode, BOUND[dtype]


def write_cases(bench: Bench) -> Iterator[Case]:
    for kind in (None, *EIGHT):
        for norm in (False, True):

            def write(kind: torch.dtype | None = kind, norm: bool = norm) -> float:
                width, tokens = 128, bench.size(300, 5)
                joined = bench.random(tokens, 16, width)
                q, k, v = joined.split((8, 4, 4), dim=1)
                x = SimpleNamespace(q=q, k=k, v=v)
                slots = torch.randperm(tokens + 20, device=bench.device)[:tokens]
                slots[1] = -1
                positions = torch.arange(tokens, device=bench.device)
                angles = positions.unsqueeze(1) * torch.linspace(1, 0.01, width // 2, device=bench.device)
                rope = RopeTables(angles.cos().repeat(1, 2), angles.sin().repeat(1, 2))
                weights = [torch.rand(width, device=bench.device) + 0.5 for _ in "qk"]
                norms = HeadNorms(weights[0], weights[1], 1e-6) if norm else None
                options = {"kv_heads": 4, "width": width, "page": 16, "dtype": bench.dtype, "eight_bit": kind}
                kv, _ = paged(bench, [1], [tokens + 20], **options)
                other = type(kv)(*(None if plane is None else plane.clone() for plane in kv))
                got = kv_write(x, kv, slots, positions, norms, rope)
                want = kv_write_reference(x, other, slots, positions, norms, rope)
                errors = [relative(got, want)]
                errors += [relative(a, b) for a, b in zip(kv, other, strict=True) if a is not None and b is not None]
                return max(errors)

            name = f"kv_write {'plain' if kind is None else str(kind).split('.')[1]}{' norm' if norm else ''}"
            yield name, write, 0.16 if kind == EIGHT[1] else 2e-2


def packed(bench: Bench, form: str, n: int, k: int, group: int, *, mins: bool) -> PackedWeight:
    scales = torch.rand(n, k // group if group else 1, device=bench.device) * 0.02
    planes: dict[str, torch.Tensor] = {"scales": scales if group else scales.squeeze(1)}
    if form == "u4_group":
        planes["codes"] = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=bench.device)
    elif form == "fp8":
        planes["codes"] = torch.randn(n, k, device=bench.device).to(torch.float8_e4m3fn)
    else:
        planes["codes"] = torch.randint(-127, 128, (n, k), device=bench.device).to(torch.int8)
    if mins:
        planes["mins"] = torch.randn(n, k // group, device=bench.device) * 0.02
    zero = 8 if form == "u4_group" and not mins else 0
    on_host = {name: plane.cpu() for name, plane in planes.items()}
    return PackedWeight(form, (n, k), on_host, group, zero)  # type: ignore[arg-type]


def gemm_cases(bench: Bench, rng: random.Random) -> Iterator[Case]:
    n, k = bench.size(1100, 40), bench.size(2048, 128)
    forms = [("u4_group", 128), ("u4_group", 32), ("i8_group", 32), ("i8_channel", 0), ("fp8", 0)]
    for form, group in forms:
        for m in (1, 7, 16, 33, 64, 200, 1024) if not bench.dry else (1, 20):
            mins = form.endswith("group") and rng.random() < 0.5

            def product(form: str = form, group: int = group, m: int = m, mins: bool = mins) -> float:
                weight = packed(bench, form, n, k, group, mins=mins)
                x, added = bench.random(m, k), Epilogue(bench.random(n), bench.random(m, n))
                if form == "u4_group":
                    return relative(
                        gemm_w4(x, pack_w4(weight, bench.device), added), gemm_w4_reference(x, weight, added)
                    )
                multiply = gemm_fp8 if form == "fp8" else gemm_w8
                return relative(multiply(x, pack_w8(weight, bench.device), added), gemm_w8_reference(x, weight, added))

            rounds = form == "fp8" and m > 64
            yield f"gemm {form} g{group} m{m}{' mins' if mins else ''}", product, 6e-2 if rounds else 1e-2

    for form, multiply in (("i8_channel", gemm_w8), ("fp8", gemm_fp8)):
        for columns in (n, n + 4):  # the second is a multiple of 16
            for m in (16, 70, 300) if not bench.dry else (3, 70):

                def quantized(form: str = form, multiply: Any = multiply, n: int = columns, m: int = m) -> float:
                    weight = packed(bench, form, n, k, 0, mins=False)
                    rows = quantize_rows(bench.random(m, k), weight.planes["codes"].dtype)
                    got = multiply(rows, pack_w8(weight, bench.device))
                    return relative(got, gemm_w8_reference(rows, weight, Epilogue()))

                yield f"gemm {form} on quantized rows m{m} n{columns}", quantized, 2e-2


def expert_weights(bench: Bench, kind: torch.dtype | str | None, experts: int, n: int, k: int) -> Experts:
    if kind == "u4":
        return pack_experts_w4(
            [packed(bench, "u4_group", n, k, 32, mins=bool(experts % 2)) for _ in range(experts)], bench.device
        )
    values = bench.random(experts, n, k, dtype=torch.float32)
    if kind is None:
        return ExpertWeights(values.to(bench.dtype))
    codes = (values * 20).round().clamp(-127, 127) if kind == torch.int8 else values
    return ExpertWeights(codes.to(kind), torch.rand(experts, n, device=bench.device) * 0.1)


def moe_cases(bench: Bench) -> Iterator[Case]:
    """Both products of a layer of experts: a row a token, then a row a (token, expert)."""
    experts, top_k, n, k = bench.size(32, 5), 4, bench.size(768, 40), bench.size(1056, 96)
    for kind in (None, *EIGHT, "u4"):
        for tokens in (1, 33, 200) if not bench.dry else (9,):

            def grouped(kind: torch.dtype | str | None = kind, tokens: int = tokens) -> float:
                x, weights = bench.random(tokens, k), expert_weights(bench, kind, experts, n, k)
                picked = torch.rand(tokens, experts, device=bench.device).topk(top_k).indices.int()
                factors = torch.rand(tokens, top_k, device=bench.device)
                tiles = moe_tiles(x, weights, tokens * top_k)
                blocks = moe_align(picked, experts, tiles["BLOCK_M"])
                options: dict[str, Any] = {"num_rows": tokens * top_k, "tiles": tiles}
                first = expert_product(x, weights, blocks, top_k=top_k, **options)
                errors = [relative(first, moe_reference(x, weights, picked, None))]
                each = picked.flatten().unsqueeze(1)
                rows = bench.random(tokens * top_k, k)
                second = expert_product(rows, weights, blocks, top_k=1, factors=factors, **options)
                wanted = moe_reference(rows, weights, each, factors.flatten().unsqueeze(1))
                return max(*errors, relative(second, wanted))

            yield f"moe {str(kind).split('.')[-1] if kind else 'plain'} {tokens} tokens", grouped, 1e-2


def row_cases(bench: Bench) -> Iterator[Case]:
    columns = bench.size(4096, 96)
    x, residual = bench.random(37, columns), bench.random(37, columns)
    weight = torch.rand(columns, device=bench.device) + 0.5
    yield "rms_norm", lambda: relative(rms_norm_rows(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)[0]), 1e-2
    for kind in EIGHT:

        def normed(kind: torch.dtype = kind) -> float:
            got, _ = rms_norm_quantized(x, weight, 1e-5, kind, residual)
            want = quantize_rows_reference(rms_norm_reference(x, weight, 1e-5, residual)[0], kind)
            return max(relative(got.codes, want.codes), relative(got.scales, want.scales))

        yield f"rms_norm {str(kind).split('.')[1]}", normed, 0.16 if kind == EIGHT[1] else 2e-2
    for activation in ("silu", "gelu", "gelu_tanh"):
        both = bench.random(37, 2 * columns)
        yield (
            activation,
            lambda both=both, a=activation: relative(gate_rows(both, a), gate_reference(both, a)),
            1e-2,
        )

        def gated(both: torch.Tensor = both, activation: str = activation) -> float:
            got = gate_quantized(both, activation, torch.int8)
            return relative(got.codes, quantize_rows_reference(gate_reference(both, activation), torch.int8).codes)

        yield f"{activation} int8", gated, 2e-2
    table = bench.random(500, columns)
    ids = torch.randint(0, 500, (33,), device=bench.device, dtype=torch.int32)

    def embedded() -> float:
        got = embedding_rows(table, ids, table.dtype, 1.5)
        return relative(got, embedding_reference(table, ids, table.dtype, 1.5))

    yield "embedding", embedded, 1e-2


def sampler_cases(bench: Bench) -> Iterator[Case]:
    rows, vocab = bench.size(64, 4), bench.size(32000, 300)

    def sampled() -> float:
        """Share of rows with another token: near ties of noise may fall otherwise, seldom."""
        device = bench.device
        logits = torch.randn(rows, vocab, device=device) * 3
        log_min_p = torch.where(torch.rand(rows, device=device) < 0.3, torch.rand(rows, device=device).log() - 2, -1e9)
        log_min_p[log_min_p < -1e8] = float("-inf")
        params = RowParams(
            torch.rand(rows, device=device) * 1.5 * (torch.arange(rows, device=device) % 4 > 0),
            torch.randint(0, 60, (rows,), device=device, dtype=torch.int32),
            torch.rand(rows, device=device),
            log_min_p,
            torch.randint(-(2**31), 2**31 - 1, (rows, 2), device=device).int(),
        )
        ids, peaks = sample(logits, params)
        assert torch.equal(peaks, logits.amax(-1))
        return float((ids != sample_reference(logits, params)).float().mean())

    def accepted() -> float:
        lens = torch.randint(1, 6, (200,))
        offsets = torch.tensor([0, *lens.cumsum(0).tolist()], dtype=torch.int32)
        ids = torch.randint(0, 2, (int(offsets[-1]),))
        drafts = torch.where(torch.rand(len(ids)) < 0.2, 1 - ids, ids)
        got = accept(*(t.to(bench.device) for t in (ids, drafts, offsets)), 4)
        return float((got.cpu() != accept_reference(ids, drafts, offsets)).float().mean())

    yield "sampler (share of other tokens)", sampled, 0.02
    yield "accept", accepted, 0.0
