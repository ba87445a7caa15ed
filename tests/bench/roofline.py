"""How close each CPU kernel comes to what this machine can do.

    python -m tests.bench.roofline [--json FILE] [--tier NAME] [--threads N] [--quick]

First the machine: how fast all threads together read a buffer of the weights' size, and how many products they make in
registers. Then the kernels, in the shapes of the default model, over weights and caches that no cache level holds. The
limit of a kernel is the longer of reading what it must read and multiplying what it must multiply; the last column is
that limit over the time it took. Best of several runs: other work on the machine only ever takes time away.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from inferd.engine.workspace import BucketWorkspace
from inferd.plugin.types import AttentionLayer, Gqa, KVGroup, KVPlane, PackedWeight, Qkv, StepCounts, StepInputs
from inferd_kernels.cpu.library import load
from inferd_kernels.cpu.linear import CpuBf16Linear, CpuDenseLinear, CpuKernel, CpuPackedLinear, PackedMatrix
from inferd_kernels.cpu.pages import Slabs, large_pages
from inferd_kernels.cpu.program import Program, launch
from inferd_kernels.cpu.rows import norm_bf16, norm_plain, norm_rows, silu_rows
from inferd_kernels.cpu.structs import ProbeArgs
from inferd_plugins.attention.cpu import CpuAttention

HIDDEN, MLP, HEADS, KV_HEADS, WIDTH = 576, 1536, 9, 3, 64
MATRICES = {"qkv": (960, HIDDEN), "out": (HIDDEN, HIDDEN), "gate_up": (2 * MLP, HIDDEN), "down": (HIDDEN, MLP)}
SWEEP_BYTES = 96 << 20
CHAINS = 12
READ, CODES, PAIRS, FLOATS = range(4)
PRODUCTS = {CODES: 64, PAIRS: 32, FLOATS: 16}
"""Of one vector instruction."""
Peak = Literal["codes", "pairs", "floats"]


@dataclass(frozen=True)
class Machine:
    """Limits measured on all threads: bytes and multiply-adds per second."""

    tier: str
    threads: int
    read: float
    codes: float
    pairs: float
    floats: float


@dataclass(frozen=True)
class Result:
    kernel: str
    ms: float
    gb_s: float
    gmac_s: float
    bound: str
    fraction: float


def best_of(runs: int, call: Callable[[], object]) -> float:
    """Return the shortest time of several, in seconds, after a warm-up."""
    call()
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def probe(kind: int, turns: int, data: torch.Tensor) -> float:
    """Return the seconds that all threads need for so many turns each."""
    out = torch.zeros(load().threads)
    args = ProbeArgs(data.data_ptr(), data.nbytes, turns, out.data_ptr(), kind)
    return best_of(9, lambda: launch("probe", args, data, out))


def sweep_buffer(num_bytes: int) -> torch.Tensor:
    """Return so many bytes to read, on large pages as weights are: they must be asked for before the first write."""
    return torch.frombuffer(large_pages(num_bytes), dtype=torch.float32, count=num_bytes // 4).fill_(1)


def measure_machine() -> Machine:
    library = load()
    turns = 200_000
    small, large = torch.ones(64), sweep_buffer(SWEEP_BYTES)
    done = {k: library.threads * turns * CHAINS * n / probe(k, turns, small) for k, n in PRODUCTS.items()}
    if library.tier != "avx512bf16":
        done[PAIRS] = done[FLOATS]
    read = large.nbytes / probe(READ, 1, large)
    return Machine(library.tier, library.threads, read, done[CODES], done[PAIRS], done[FLOATS])


def judge(machine: Machine, kernel: str, seconds: float, num_bytes: float, macs: float, peak: Peak) -> Result:
    reading, multiplying = num_bytes / machine.read, macs / getattr(machine, peak)
    bound = "memory" if reading > multiplying else peak
    return Result(
        kernel,
        round(seconds * 1e3, 3),
        round(num_bytes / seconds * 1e-9, 1),
        round(macs / seconds * 1e-9, 1),
        bound,
        round(max(reading, multiplying) / seconds, 3),
    )


def replay(program: Program, tokens: int, sequences: int = 0) -> float:
    return best_of(7, lambda: program.run(tokens=tokens, sequences=sequences, sampled=0))


def random_weight(kind: str, n: int, k: int) -> PackedWeight:
    """Q4_1, Q8_0 or bf16."""
    if kind == "bf16":
        return PackedWeight("dense", (n, k), {"weight": torch.randn(n, k).bfloat16()})
    scales = (torch.rand(n, k // 32) / 16 + 0.01).half()
    if kind == "u4":
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        planes = {"codes": codes, "scales": scales, "mins": torch.randn(n, k // 32).half()}
        return PackedWeight("u4_group", (n, k), planes, group=32)
    codes = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    return PackedWeight("i8_group", (n, k), {"codes": codes, "scales": scales}, group=32)


def rows_for(kernel: CpuKernel, x: torch.Tensor) -> Any:
    """Norm rows [T, K] and make what the kernel multiplies of them."""
    weight = torch.ones(x.shape[1])
    if kernel.input_format == "int8 rows":
        return norm_rows(x, weight, 1e-5)
    return (norm_bf16 if kernel.input_format == "bf16 rows" else norm_plain)(x, weight, 1e-5)


def linears(machine: Machine, kind: str, rows: tuple[int, ...]) -> Iterator[Result]:
    """Each matrix of a layer, as many copies of it as the caches do not hold, by the kernel that engines choose."""
    floats = CpuBf16Linear() if load().multiplies_bf16 else CpuDenseLinear()
    kernel: CpuKernel = floats if kind == "bf16" else CpuPackedLinear()
    peaks: dict[str, Peak] = {"bf16 rows": "pairs", "native rows": "floats"}
    for name, (n, k) in MATRICES.items():
        first = kernel.prepare(random_weight(kind, n, k), device="cpu", dtype=torch.float32)
        memory = Slabs()
        copies = [first, *(_copy(first, memory) for _ in range(SWEEP_BYTES // first.nbytes))]
        for count in rows:
            made = rows_for(kernel, torch.randn(count, k))
            some = copies[: max(2, len(copies) * 8 // max(8, count))]
            program = Program()
            with program.record():
                for weight in some:
                    kernel.linear(made, weight)
            seconds = replay(program, count) / len(some)
            yield judge(
                machine,
                f"{kind} {name} x{count}",
                seconds,
                first.nbytes,
                count * n * k,
                peaks.get(kernel.input_format, "codes"),
            )


def _copy(weight: PackedMatrix, memory: Slabs) -> PackedMatrix:
    data = memory.take(weight.nbytes).copy_(weight.data)
    args = type(weight.args).from_buffer_copy(weight.args)
    args.weights = data.data_ptr()
    return PackedMatrix(weight.shape, data, args)


def attention(machine: Machine, format: Literal["fp32", "bf16"], queries: int, context: int, sequences: int) -> Result:
    """Attend from the last `queries` positions of each sequence, layer after layer."""
    torch.manual_seed(0)
    backend = CpuAttention()
    layout = backend.kv_layout(KVGroup((0,), tuple(KVPlane(p, KV_HEADS, WIDTH) for p in "kv"), None), format, 16)
    blocks = -(-context // 16)
    layers = max(2, SWEEP_BYTES // (sequences * blocks * layout.bytes_per_block)) if queries == 1 else 2
    dtype = torch.float32 if format == "fp32" else torch.bfloat16
    layer = AttentionLayer(0, 0, Gqa(HEADS, KV_HEADS, WIDTH, scale=0.125), None, None)
    tokens = sequences * queries
    inputs = StepInputs(
        token_ids=torch.zeros(tokens, dtype=torch.int32),
        positions=torch.arange(context - queries, context).repeat(sequences),
        cu_seqlens=torch.arange(0, tokens + 1, queries, dtype=torch.int32),
        context_lens=torch.full((sequences,), context, dtype=torch.int32),
        block_tables=torch.randperm(sequences * blocks).int().view(1, sequences, blocks),
        slots=torch.zeros(1, tokens, dtype=torch.int64),
        sample_rows=torch.zeros(0, dtype=torch.int32),
        query_lens=[queries] * sequences,
        context_lens_host=[context] * sequences,
        counts=StepCounts(0, 0, sequences),
    )
    program = Program()
    q = torch.randn(tokens, HEADS, WIDTH)
    shape = (sequences * blocks, 16, KV_HEADS, WIDTH)
    caches = [{plane.name: torch.randn(shape).to(dtype) for plane in layout.group.planes} for _ in range(layers)]
    with program.record():
        plan = backend.plan(inputs, BucketWorkspace("cpu"))
        for kv in caches:
            backend.attend(layer, q, kv, plan)
    seconds = replay(program, tokens, sequences) / layers
    seen = queries * (context - queries) + queries * (queries + 1) // 2
    peak: Peak = "floats" if format == "fp32" else "pairs"
    macs, num_bytes = 2 * sequences * HEADS * WIDTH * seen, sequences * blocks * layout.bytes_per_block
    return judge(machine, f"attend {format} {sequences}x{queries} of {context}", seconds, num_bytes, macs, peak)


def small_operators(machine: Machine) -> Iterator[Result]:
    """What lies between the multiplications: read and written once, from the caches if they are lucky."""
    rows = 512
    x, gate_up = torch.randn(rows, HIDDEN), torch.randn(rows, 2 * MLP)
    weight = torch.ones(HIDDEN)
    for name, make, num_bytes in (
        ("norm + quantize x512", lambda: norm_rows(x, weight, 1e-5), rows * HIDDEN * 5.5),
        ("silu + quantize x512", lambda: silu_rows(gate_up), rows * MLP * 9.5),
    ):
        program = Program()
        with program.record():
            kept = [make() for _ in range(8)]
        yield judge(machine, name, replay(program, rows) / len(kept), num_bytes, 0, "floats")
    backend = CpuAttention()
    layout = backend.kv_layout(KVGroup((0,), tuple(KVPlane(p, KV_HEADS, WIDTH) for p in "kv"), None), "bf16", 16)
    kv = {plane.name: torch.zeros(rows // 16, 16, KV_HEADS, WIDTH).bfloat16() for plane in layout.group.planes}
    tables = torch.ones(rows, WIDTH)
    layer = AttentionLayer(0, 0, Gqa(HEADS, KV_HEADS, WIDTH, scale=0.125), tables, tables)
    qkv = torch.randn(rows, HEADS + 2 * KV_HEADS, WIDTH)
    positions = torch.arange(rows)
    inputs = StepInputs(
        token_ids=torch.zeros(rows, dtype=torch.int32),
        positions=positions,
        cu_seqlens=torch.tensor([0, rows], dtype=torch.int32),
        context_lens=torch.tensor([rows], dtype=torch.int32),
        block_tables=torch.arange(rows // 16, dtype=torch.int32).view(1, 1, -1),
        slots=positions[None],
        sample_rows=torch.zeros(0, dtype=torch.int32),
    )
    program = Program()
    with program.record():
        plan = backend.plan(inputs, BucketWorkspace("cpu"))
        for _ in range(8):
            backend.write(layer, Qkv(*qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=1)), kv, plan, inputs)
    num_bytes = rows * WIDTH * (4 * (2 * HEADS + 2 * KV_HEADS) + 2 * 2 * KV_HEADS)
    yield judge(machine, "rope + cache write x512", replay(program, rows) / 8, num_bytes, 0, "floats")


def measure(machine: Machine, *, quick: bool) -> Iterator[Result]:
    yield from linears(machine, "u4", (1, 8) if quick else (1, 2, 8, 32, 512))
    if quick:
        return
    yield from linears(machine, "i8", (1, 8, 512))
    yield from linears(machine, "bf16", (1, 8, 32))
    for format in ("fp32", "bf16"):
        for queries, context, sequences in ((512, 512, 1), (512, 2048, 1), (1, 2048, 1), (1, 2048, 8), (1, 256, 32)):
            yield attention(machine, format, queries, context, sequences)
    yield from small_operators(machine)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How close each CPU kernel comes to what this machine can do.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tier")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="4-bit matrices on 1 and 8 rows only")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.tier:
        load().use_tier(options.tier)
    if options.threads:
        load().set_threads(options.threads)
    machine = measure_machine()
    print(
        f"{machine.tier}, {machine.threads} threads: read {machine.read * 1e-9:.1f} GB/s; GMAC/s: "
        f"codes {machine.codes * 1e-9:.0f}, bf16 pairs {machine.pairs * 1e-9:.0f}, floats {machine.floats * 1e-9:.0f}"
    )
    print(f"{'kernel':28} {'ms':>9} {'GB/s':>7} {'GMAC/s':>8}  {'bound':8} of limit")
    results: list[Result] = []
    for r in measure(machine, quick=options.quick):
        print(f"{r.kernel:28} {r.ms:9.3f} {r.gb_s:7.1f} {r.gmac_s:8.1f}  {r.bound:8} {r.fraction:7.0%}", flush=True)
        results.append(r)
    if options.json:
        found = {"machine": asdict(machine), "kernels": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
