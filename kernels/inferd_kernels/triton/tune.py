"""Find the fastest tiles of each kernel on the device at hand.

Every case is launched at the sizes of an 8B model with each candidate; the fastest wins. What does not fit the
device, or fails there, is left out. The result is a table as `tiling` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from inferd_kernels.triton.attn_decode import attn_decode, plan_splits, scratch_shapes
from inferd_kernels.triton.attn_prefill import KVCache, Ragged, Scores, attn_prefill
from inferd_kernels.triton.gemm_w4 import Weight4, gemm_w4
from inferd_kernels.triton.gemm_w8 import Weight8, gemm_w8
from inferd_kernels.triton.tiling import FOLDER, Table, Tiles, device_name

Measure = Callable[[Callable[[], object]], float]
"""Return the time of one call."""


class Sizes(NamedTuple):
    """Of the workloads; smaller ones make a quick trial."""

    tokens: int = 8192
    context: int = 16384
    sequences: int = 8
    columns: int = 14336
    hidden: int = 4096


class Case(NamedTuple):
    kernel: str
    case: str
    candidates: tuple[Tiles, ...]
    launch: Callable[[Tiles], object]


def combinations(**values: tuple[int, ...]) -> tuple[Tiles, ...]:
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


def cases(device: str, sizes: Sizes) -> Iterator[Case]:
    """Yield every case with its candidates; tensors of a case are made when it comes up."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    for width in (64, 128):
        yield _prefill(device, dtype, width, sizes)
        for eight_bit in (False, True):
            yield _decode(device, dtype, width, sizes, eight_bit=eight_bit)
    for rows, case in ((1, "m16"), (32, "m32"), (64, "m64"), (2048, "large")):
        yield _four_bits(device, dtype, rows, case, sizes)
        yield _eight_bits(device, dtype, rows, case, sizes)


def _cache(
    device: str, dtype: torch.dtype, width: int, lens: list[int], contexts: list[int], *, eight_bit: bool
) -> tuple[KVCache, Ragged]:
    pages = [-(-context // 16) for context in contexts]
    shape = (sum(pages), 16, 8, width)
    planes = [torch.randn(shape, device=device).to(torch.int8 if eight_bit else dtype) for _ in "kv"]
    scales = [torch.ones(*shape[:3], 1, device=device) if eight_bit else None for _ in "kv"]
    order, tables = torch.randperm(sum(pages)).int().split(pages), torch.zeros(len(pages), max(pages)).int()
    for row, pages_of in zip(tables, order, strict=True):
        row[: len(pages_of)] = pages_of
    offsets = torch.tensor([0, *lens]).cumsum(0).int()
    placed = [t.to(device) for t in (offsets, torch.tensor(contexts).int(), tables)]
    return KVCache(planes[0], planes[1], *scales), Ragged(placed[0], placed[1], placed[2], 0, len(lens), sum(lens))


def _prefill(device: str, dtype: torch.dtype, width: int, sizes: Sizes) -> Case:
    kv, batch = _cache(device, dtype, width, [sizes.tokens], [sizes.tokens], eight_bit=False)
    q = torch.randn(sizes.tokens, 32, width, device=device).to(dtype)
    out = torch.empty_like(q)
    candidates = combinations(BLOCK_M=(64, 128), TILE=(32, 64, 128), num_warps=(4, 8), num_stages=(2, 3))
    return Case(
        "attn_prefill",
        f"hd{width}",
        candidates,
        lambda tiles: attn_prefill(q, kv, batch, Scores(width**-0.5), out, tiles=tiles),
    )


def _decode(device: str, dtype: torch.dtype, width: int, sizes: Sizes, *, eight_bit: bool) -> Case:
    count, context = sizes.sequences, sizes.context
    kv, batch = _cache(device, dtype, width, [1] * count, [context] * count, eight_bit=eight_bit)
    q = torch.randn(count, 32, width, device=device).to(dtype)
    out, offsets = torch.empty_like(q), torch.empty(count + 1, dtype=torch.int32, device=device)

    def launch(tiles: Tiles) -> None:
        splits = plan_splits(batch, offsets, split=tiles["SPLIT"], max_context=context)
        shapes = scratch_shapes(count, splits.max_splits, 1, 32, width)
        part, lse = (torch.empty(shape, device=device) for shape in shapes)
        attn_decode(q, kv, batch, Scores(width**-0.5), splits, (part, lse), out, rows=1, tiles=tiles)

    candidates = combinations(
        TILE=(32, 64, 128), SPLIT=(256, 512, 1024), PROGRAMS=(2, 4), num_warps=(2, 4, 8), num_stages=(2, 3)
    )
    return Case("attn_decode", f"hd{width}{'-8bit' if eight_bit else ''}", candidates, launch)


def _gemm_candidates(rows: int) -> tuple[Tiles, ...]:
    if rows > 64:
        return combinations(
            BLOCK_M=(128,), BLOCK_N=(64, 128), PROGRAMS=(0,), num_warps=(4, 8), num_stages=(2, 3, 4)
        ) + combinations(BLOCK_M=(256,), BLOCK_N=(128,), PROGRAMS=(0,), num_warps=(8,), num_stages=(2, 3))
    block = max(16, triton.next_power_of_2(rows))
    return combinations(
        BLOCK_M=(block,), BLOCK_N=(32, 64, 128), PROGRAMS=(1, 2, 4, 8), num_warps=(2, 4), num_stages=(3, 4, 5)
    )


def _four_bits(device: str, dtype: torch.dtype, rows: int, case: str, sizes: Sizes) -> Case:
    n, k = sizes.columns, sizes.hidden
    codes = torch.randint(0, 256, (k // 128, n, 64), dtype=torch.uint8, device=device)
    weight = Weight4(codes, torch.rand(k // 128, n, device=device).half(), None, (n, k), 128, 8)
    x = torch.randn(rows, k, device=device).to(dtype)
    return Case("gemm_w4", case, _gemm_candidates(rows), lambda tiles: gemm_w4(x, weight, tiles=tiles))


def _eight_bits(device: str, dtype: torch.dtype, rows: int, case: str, sizes: Sizes) -> Case:
    n, k = sizes.columns, sizes.hidden
    codes = torch.randint(-127, 128, (n, k), device=device).to(torch.int8)
    weight = Weight8(codes, torch.rand(1, n, device=device), None, k, 0)
    x = torch.randn(rows, k, device=device).to(dtype)
    return Case("gemm_w8", case, _gemm_candidates(rows), lambda tiles: gemm_w8(x, weight, tiles=tiles))


def best_of(case: Case, measure: Measure) -> tuple[Tiles, float] | None:
    """Return the fastest candidate of a case and its time; None where none runs."""
    found: tuple[Tiles, float] | None = None
    for tiles in case.candidates:
        try:
            seconds = measure(lambda tiles=tiles: case.launch(tiles))
        except (OutOfResources, PTXASError, CompilationError):
            continue
        if found is None or seconds < found[1]:
            found = tiles, seconds
    return found


def tune(
    device: str,
    measure: Measure,
    *,
    sizes: Sizes = Sizes(),
    on_case: Callable[[str, Tiles, float], None] = lambda _name, _tiles, _seconds: None,
) -> Table:
    """Return the table of the device; `on_case` hears each result."""
    table: dict[str, dict[str, Tiles]] = {}
    for case in cases(device, sizes):
        found = best_of(case, measure)
        if found is not None:
            table.setdefault(case.kernel, {})[case.case] = found[0]
            on_case(f"{case.kernel} {case.case}", *found)
    return table


def gpu_seconds(run: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU, caches cold."""
    return float(triton.testing.do_bench(run, warmup=5, rep=30, return_mode="median")) / 1000


def table_path(device: torch.device | str) -> Path:
    """Return the file that `tiling` reads for a GPU."""
    return FOLDER / f"{device_name(torch.cuda.get_device_name(device))}.json"


def write(table: Table, path: Path) -> None:
    """Write a table, one case a line. Raises OSError."""
    kernels = [
        f"  {json.dumps(kernel)}: {{\n"
        + ",\n".join(f"    {json.dumps(case)}: {json.dumps(dict(tiles))}" for case, tiles in cases.items())
        + "\n  }"
        for kernel, cases in table.items()
    ]
    path.write_text("{\n" + ",\n".join(kernels) + "\n}\n")
