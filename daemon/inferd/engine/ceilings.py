"""Measure what the machine can do at best: reading memory, and matrix products by number format.

Short slices in idle time, each as a step would use the machine (all compute threads together, nothing
else running), the best of several at several starts; remembered per machine in the cache folder.
Utilisation is shown against these figures, not against a data sheet.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch

from inferd.engine.executor import loses_device
from inferd.link import Ceilings
from inferd_kernels.cpu.threads import physical_cores

FILE = "ceilings.json"
SLICE_S = 0.05
"""A request that comes in the middle of a slice waits for its end."""
ROUNDS = 6
READ_BYTES = 128 << 20
"""Read at once on a CPU, by all threads together: more than its caches hold."""
GPU_READ_BYTES, GPU_WIDTH = 1 << 30, 8192
"""Halved, and the width too, until they take an eighth of what is free."""
ROWS, WIDTH = 256, 1024
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}

READ = "read"
"""Name of the one figure that is no number format."""
ENOUGH = 3
"""Measurements, at one start each, of which the best is kept."""
KEPT_S = 30 * 86400.0

Timed = Callable[[], None]


class Best(msgspec.Struct, frozen=True):
    """The best of the measurements of one figure."""

    rate: float = 0.0
    times: int = 0
    since: float = 0.0
    """Unix seconds of the first one."""


def measure(
    device: str, threads: int, formats: tuple[str, ...], cache: Path | None, wall: Callable[[], float] = time.time
) -> Iterator[Ceilings | None]:
    """Yield what is remembered at once, None after each slice of work, and the result when it is better.

    A machine that is busy measures low, so the first starts measure again and the best is kept; after a month all is
    measured anew. `formats` are those that matter here; the rate of one that the device has no product for is 0.
    """
    on_gpu = device.startswith("cuda")
    threads = 1 if on_gpu else threads or physical_cores()
    key = f"{_device_name(device)}, {threads} threads, torch {torch.__version__}"
    now = wall()
    found = {name: best for name, best in _load(cache).get(key, {}).items() if now - best.since < KEPT_S}
    due = [name for name in (READ, *formats) if name not in found or found[name].times < ENOUGH]
    before = _as_ceilings(found) if {READ, *formats} <= set(found) else None
    if before is not None:
        yield before
    if not due:
        return
    yield None
    for name in due:
        known, rate = found.get(name, Best(since=now)), 0.0
        try:
            for best in _best(*_work(name, device, threads)):
                rate = best
                yield None
        except (RuntimeError, KeyError) as error:
            if loses_device(error):
                raise
            # no kernel for this format here
        found[name] = Best(rate=max(rate, known.rate), times=known.times + 1, since=known.since)
    if on_gpu:
        torch.cuda.empty_cache()  # the matrices came out of the reserve
    _save(cache, key, found)
    yield _as_ceilings(found)


def _as_ceilings(found: dict[str, Best]) -> Ceilings:
    flops = {name: best.rate for name, best in found.items() if name != READ}
    return Ceilings(read_bytes_s=found[READ].rate, flops=flops)


def _work(name: str, device: str, threads: int) -> tuple[Timed, float]:
    """Return what to time for a figure, and how much of it one call does."""
    if name == READ:
        return _reader(device, threads)
    return _multiplier(device, threads, FORMATS[name])


def _best(work: Timed, amount: float) -> Iterator[float]:
    """Run `work` for a slice again and again; yield the best rate so far after each."""
    work()
    rate = 0.0
    for _ in range(ROUNDS):
        end = time.perf_counter() + SLICE_S
        while (start := time.perf_counter()) < end:
            work()
            rate = max(rate, amount / (time.perf_counter() - start))
        yield rate


def _read_bytes(device: str) -> int:
    if not device.startswith("cuda"):
        return READ_BYTES
    return fitting(GPU_READ_BYTES, torch.cuda.mem_get_info(device)[0], lambda size: size)


def fitting(size: int, free: int, num_bytes: Callable[[int], int]) -> int:
    """Halve a size until what it takes is an eighth of the free memory at most."""
    while size > 1 and num_bytes(size) > free // 8:
        size //= 2
    return size


def _reader(device: str, threads: int) -> tuple[Timed, float]:
    size = _read_bytes(device)
    parts = [torch.ones(size // 4 // threads, device=device) for _ in range(threads)]
    return _together(device, [lambda part=part: part.amax() for part in parts]), size


def _multiplier(device: str, threads: int, dtype: torch.dtype) -> tuple[Timed, float]:
    """Return a product of square matrices (a GPU), or of some rows with one (each thread of a CPU)."""
    width, rows = WIDTH, ROWS
    if device.startswith("cuda"):
        free = torch.cuda.mem_get_info(device)[0]
        width = rows = fitting(GPU_WIDTH, free, lambda width: 3 * width * width * dtype.itemsize)
    product = torch._int_mm if dtype is torch.int8 else torch.mm  # pyright: ignore[reportPrivateImportUsage]
    pairs = [
        (
            _random(rows, width, device, dtype),
            _random(width, width, device, dtype),
        )
        for _ in range(threads)
    ]
    work = _together(device, [lambda a=a, b=b: product(a, b) for a, b in pairs])
    return work, 2.0 * threads * rows * width * width


def _random(rows: int, columns: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers like those of weights: a GPU multiplies equal ones with less power, and faster."""
    made = torch.empty(rows, columns, device=device, dtype=dtype)
    return made.normal_() if dtype.is_floating_point else made.random_(-127, 128)


def _together(device: str, tasks: list[Callable[[], torch.Tensor]]) -> Timed:
    """Run one task a thread, each on one core; on a GPU wait for its end."""
    if device.startswith("cuda"):

        def on_gpu() -> None:
            tasks[0]()
            torch.cuda.synchronize(device)

        return on_gpu

    def on_cpu() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        workers = [threading.Thread(target=task) for task in tasks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        torch.set_num_threads(before)

    return on_cpu


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, 'CPU')} x {os.cpu_count()}"


def _load(cache: Path | None) -> dict[str, dict[str, Best]]:
    """Return what is remembered; a file that is absent or spoilt is as good as none."""
    if cache is None:
        return {}
    try:
        return msgspec.json.decode((cache / FILE).read_bytes(), type=dict[str, dict[str, Best]])
    except (OSError, msgspec.DecodeError):
        return {}


def _save(cache: Path | None, key: str, found: dict[str, Best]) -> None:
    if cache is None:
        return
    temporary = cache / f"{FILE}.{os.getpid()}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(_load(cache) | {key: found})))
        temporary.replace(cache / FILE)
    except OSError:
        return  # measured again at the next start
