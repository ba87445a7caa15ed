"""The daemon under load as its monitor shows it: memory by part beside the driver's figures, energy, MFU and MBU."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferd.devices import Nvml
from inferd.devices.readings import Gpu
from inferd.load.errors import LoadError
from tests.e2e.harness import Served, alive, serving
from tests.gpu.bench import Bench
from tests.gpu.goals import check, row
from tests.gpu.model_file import installed, joined
from tests.gpu.parts.real import PACKED
from tests.tiny import tiny_llama

PARTS = ("weights", "kv_used", "kv_free", "activations", "process")
TOLERANCE = 0.03
"""Of the bytes that the driver says our process holds."""
CEILINGS_S, FIRST_S, LOAD_S, UNLOAD_S = 25.0, 25.0, 6.0, 10.0
RETURNED = 64 << 20
"""Bytes that may stay after an unload: other programs come and go."""
VOCAB = 280
"""Ids that every model here has."""


def run(bench: Bench) -> dict[str, Any]:
    model = path_of_model(bench)
    engine: dict[str, Any] = {
        "max_context": 2048,
        "device": bench.device,
        "kv_bytes": bench.size(4 << 30, 128 << 20),
        "max_sequences": 16,
    }
    config: dict[str, Any] = {
        "preload": False,
        "engine": engine | ({"threads": 1} if bench.dry else {}),
        "paths": {"models": str(bench.work / "models"), "cache": str(bench.work / "cache")},
        "cost": {"watts_busy": 50.0} if bench.dry else {},
    }
    before = None if bench.dry else device()
    rows: list[dict[str, Any]] = []
    with serving(None, config) as daemon:
        daemon.client().status()  # waits until it serves
        inferd(daemon, "load", str(model))
        pid = worker(daemon)
        waited(lambda: snapshot(daemon)["models"][0]["utilisation"]["flops_ceiling"], CEILINGS_S)
        with load(daemon, str(model), 16 if not bench.dry else 2):
            time.sleep(bench.size(4, 2))
            first = snapshot(daemon)
            time.sleep(LOAD_S / 2)
            last, held = snapshot(daemon), None if bench.dry else device()
        rows += [*memory(last, held, before, pid), *energy(first, last, measured=not bench.dry), *utilisation(last)]
        inferd(daemon, "unload", str(model), "--force")
        ended = waited(lambda: not alive(pid), UNLOAD_S)
        rows.append(check("unload ends the worker", ended, f"process {pid}"))
        if before is not None:
            rows.append(returned(before))
    return {"model": model.name, "rows": rows}


def path_of_model(bench: Bench) -> Path:
    """Return the default model, or a random one where it is not at hand."""
    try:
        return joined(PACKED, bench.work) if (PACKED / "second/model.part").exists() else installed()
    except LoadError:
        sizes = {"hidden": 1024, "inner": 2816, "heads": 16, "kv_heads": 4, "layers": 6, "context": 2048}
        return tiny_llama(bench.work / "random", dtype="bfloat16", **sizes)


def inferd(daemon: Served, *words: str) -> str:
    """Run the command as a user does. Raises RuntimeError with what it said."""
    command = [sys.executable, "-m", "inferd.cli.main", "--runtime", str(daemon.runtime), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"inferd {' '.join(words)}: {done.stderr[-500:]} {daemon.logged()[-1500:]}")
    return done.stdout


def snapshot(daemon: Served) -> dict[str, Any]:
    return json.loads(inferd(daemon, "top", "--once", "--json"))


def worker(daemon: Served) -> int:
    (model,) = snapshot(daemon)["models"]
    return model["pid"]


@contextmanager
def load(daemon: Served, model: str, clients: int) -> Iterator[None]:
    """Keep the model busy with prompts of some hundred tokens, one after the other in each of some threads.

    Begins once every thread had an answer: kernels are compiled and graphs captured by then.
    """
    stop, errors, answered = threading.Event(), list[BaseException](), [threading.Event() for _ in range(clients)]

    def ask(index: int) -> None:
        rng = random.Random(index)
        try:
            client = daemon.client(f"load {index}")
            while not stop.is_set():
                prompt = [rng.randrange(4, VOCAB) for _ in range(rng.randrange(100, 400))]
                client.generate(prompt, model=model, max_tokens=rng.randrange(20, 100), ignore_eos=True)
                answered[index].set()
        except Exception as error:
            errors.append(error)
            answered[index].set()

    threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(clients)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + FIRST_S
        if not all(event.wait(max(0.0, end - time.monotonic())) for event in answered):
            raise RuntimeError(f"not every client had an answer within {FIRST_S} s; {errors[:1]}")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    if errors:
        raise errors[0]


def device() -> Gpu:
    """Ask the driver of the first GPU."""
    nvml = Nvml()
    found = nvml.read()
    nvml.close()
    if found.problem or not found.gpus:
        raise RuntimeError(f"NVML: {found.problem or 'no GPU'}")
    return found.gpus[0]


def used(gpu: Gpu) -> int:
    assert gpu.total_bytes is not None
    assert gpu.free_bytes is not None
    return gpu.total_bytes - gpu.free_bytes


def memory(last: dict[str, Any], held: Gpu | None, before: Gpu | None, pid: int) -> list[dict[str, Any]]:
    """Compare the sum of our parts with what the driver counts: by process, else what the device lost since before."""
    status = next(device for device in last["devices"] if device["name"] == last["models"][0]["device"])
    parts = {name: status["memory"][name] for name in PARTS}
    known = all(isinstance(size, int) and size >= 0 for size in parts.values())
    if held is None or before is None:
        return [check("memory: every part is known", known, parts)]
    ours = sum(size or 0 for size in parts.values())
    by_process = next((p.bytes for p in held.processes or () if p.pid == pid), None)
    truth = by_process if by_process is not None else used(held) - used(before)
    source = "NVML by process" if by_process is not None else "NVML, device before and now"
    off = abs(ours - truth) / truth
    return [
        check("memory: every part is known", known or by_process is None, parts),
        check(f"memory: parts against {source}", off <= TOLERANCE, f"{ours} of {truth} bytes, {off:.2%} apart"),
    ]


def energy(first: dict[str, Any], last: dict[str, Any], *, measured: bool) -> list[dict[str, Any]]:
    """Compare two readings; on a GPU they have to be the driver's."""
    a, b = first["cost"]["joules"], last["cost"]["joules"]
    meters = last["cost"]["meters"]
    moves = a is not None and b is not None and b > a
    ok = moves and (not measured or any(meter.startswith("nvml") for meter in meters))
    return [check("energy moves", ok, f"{a} to {b} J by {', '.join(meters) or 'no meter'}")]


def utilisation(last: dict[str, Any]) -> list[dict[str, Any]]:
    found = last["models"][0]["utilisation"]
    rows = [row(f"{name.upper()} under load", found[name] or 0.0, "1") for name in ("mfu", "mbu")]
    return [
        *rows,
        *(check(f"{name.upper()} is in (0, 1]", 0 < (found[name] or 0.0) <= 1, found[name]) for name in ("mfu", "mbu")),
    ]


def returned(before: Gpu) -> dict[str, Any]:
    waited(lambda: used(device()) - used(before) <= RETURNED, UNLOAD_S)
    left = used(device()) - used(before)
    return check("memory: an unload returns it", left <= RETURNED, f"{left} bytes more than before the load")


def waited(check_it: Callable[[], Any], seconds: float) -> bool:
    """Say whether something came true in this time."""
    end = time.monotonic() + seconds
    while not check_it():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True
