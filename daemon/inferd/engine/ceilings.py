"""Measure what the machine can do at best: reading memory, and matrix products by number format.

Short slices in idle time, each as a step would use the machine (all compute threads together, nothing
else running), the best of several; remembered per machine in the cache folder. Utilisation is shown
against these figures, not against a data sheet.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch

from inferd.link import Ceilings
from inferd_kernels.cpu.threads import physical_cores

FILE = "ceilings.json"
SLICE_S = 0.05
"""A request that comes in the middle of a slice waits for its end."""
ROUNDS = 6
READ_BYTES = 128 << 20
"""Read at once on a CPU, by all threads together: more than its caches hold."""
GPU_READ_BYTES = 1 << 30
ROWS, WIDTH, GPU_WIDTH = 256, 1024, 8192
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}

Timed = Callable[[], None]


def measure(device: str, threads: int, formats: tuple[str, ...], cache: Path | None) -> Iterator[Ceilings | None]:
    """Yield None after each slice of work, and the result at the end; one that is remembered at once.

    `formats` are those that matter here. A format that the device has no product for is left out.
    """
    on_gpu = device.startswith("cuda")
    threads = 1 if on_gpu else threads or physical_cores()
    key = f"{_device_name(device)}, {threads} threads, torch {torch.__version__}"
    known = _load(cache).get(key)
    if known is not None and set(formats) <= set(known.flops):
        yield known
        return
    yield None
    rate, flops = (known.read_bytes_s, dict(known.flops)) if known is not None else (0.0, {})
    if known is None:
        for best in _best(_reader(device, threads), _read_bytes(device)):
            rate = best
            yield None
    for name in [name for name in formats if name not in flops]:
        try:
            work, operations = _multiplier(device, threads, FORMATS[name])
            for flops[name] in _best(work, operations):
                yield None
        except (RuntimeError, KeyError):
            flops[name] = 0.0  # no kernel for this format here
    found = Ceilings(read_bytes_s=rate, flops=flops)
    _save(cache, key, found)
    yield found


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
    return GPU_READ_BYTES if device.startswith("cuda") else READ_BYTES


def _reader(device: str, threads: int) -> Timed:
    parts = [torch.ones(_read_bytes(device) // 4 // threads, device=device) for _ in range(threads)]
    return _together(device, [lambda part=part: part.amax() for part in parts])


def _multiplier(device: str, threads: int, dtype: torch.dtype) -> tuple[Timed, float]:
    """Return a product of square matrices (a GPU), or of some rows with one (each thread of a CPU)."""
    width = GPU_WIDTH if device.startswith("cuda") else WIDTH
    rows = GPU_WIDTH if device.startswith("cuda") else ROWS
    product = torch._int_mm if dtype is torch.int8 else torch.mm  # pyright: ignore[reportPrivateImportUsage]
    pairs = [
        (
            torch.ones(rows, width, device=device).to(dtype),
            torch.ones(width, width, device=device).to(dtype),
        )
        for _ in range(threads)
    ]
    work = _together(device, [lambda a=a, b=b: product(a, b) for a, b in pairs])
    return work, 2.0 * threads * rows * width * width


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


def _load(cache: Path | None) -> dict[str, Ceilings]:
    """Return what is remembered; a file that is absent or spoilt is as good as none."""
    if cache is None:
        return {}
    try:
        return msgspec.json.decode((cache / FILE).read_bytes(), type=dict[str, Ceilings])
    except (OSError, msgspec.DecodeError):
        return {}


def _save(cache: Path | None, key: str, found: Ceilings) -> None:
    if cache is None:
        return
    temporary = cache / f"{FILE}.{os.getpid()}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(_load(cache) | {key: found})))
        temporary.replace(cache / FILE)
    except OSError:
        return  # measured again at the next start
