"""NVIDIA GPUs: driver, device nodes and who may use them, what this torch was built for, memory and its holders."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from inferd.devices import Gpu, Gpus, survey
from inferd.doctor.finding import Finding, failure, gib, ok, warning

if TYPE_CHECKING:
    from inferd.doctor.checks import Examined

TOPIC = "gpu"
NVIDIA = "0x10de"
NODES = ("nvidiactl", "nvidia-uvm", "nvidia[0-9]*", "dxg")
"""`dxg` stands for all of them under WSL 2."""


def check(what: Examined) -> Iterator[Finding]:
    wanted = what.config.engine.device.startswith("cuda")
    cards = cards_on_the_bus()
    found = survey().gpus
    if not found.gpus:
        yield _absent(found, cards, wanted)
        return
    yield ok(TOPIC, f"driver {found.driver}, up to CUDA {'.'.join(map(str, found.cuda or ('?',)))}")
    yield from check_nodes()
    yield from _check_torch(found)
    for gpu in found.gpus:
        yield from _check_memory(gpu)


def cards_on_the_bus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Count NVIDIA display and compute controllers, whether or not a driver serves them."""

    def is_gpu(device: Path) -> bool:
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            return False
        return vendor == NVIDIA and kind.startswith("0x03")

    return sum(map(is_gpu, devices.glob("*")))


def _absent(found: Gpus, cards: int, wanted: bool) -> Finding:
    if cards:
        text = f"{cards} NVIDIA GPUs are on the bus, but the driver does not answer: {found.problem}"
        return failure(TOPIC, text, "install the driver of NVIDIA, or restart after its update; `nvidia-smi` must work")
    if wanted:
        return failure(
            TOPIC, f"engine.device is cuda, but {found.problem or 'no GPU is there'}", "set engine.device = auto"
        )
    return ok(TOPIC, f"none: models run on the CPU ({found.problem or 'no GPU is there'})")


def check_nodes(dev: Path = Path("/dev")) -> Iterator[Finding]:
    """Judge the device nodes that CUDA opens."""
    if not (dev / "nvidia-uvm").exists() and not (dev / "dxg").exists():
        yield failure(
            TOPIC, f"{dev}/nvidia-uvm is missing, without which CUDA does not start", "run: nvidia-modprobe -c 0 -u"
        )
    closed = [n for pattern in NODES for n in sorted(dev.glob(pattern)) if not os.access(n, os.R_OK | os.W_OK)]
    for node in closed:
        group = _group(node.stat().st_gid)
        yield failure(TOPIC, f"{node} is closed to us", f"run: sudo usermod -aG {group} $USER, and log in again")
    if not closed:
        yield ok(TOPIC, "the device nodes are open to us")


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _check_torch(found: Gpus) -> Iterator[Finding]:
    """Compare what this build of torch has kernels for with the GPUs and the driver."""
    import torch

    built = torch.version.cuda
    if built is None:
        yield failure(
            TOPIC, f"torch {torch.__version__} is built without CUDA", "install a CUDA build of torch (pytorch.org)"
        )
        return
    if found.cuda is not None and int(built.split(".")[0]) > found.cuda[0]:
        driver = ".".join(map(str, found.cuda))
        yield failure(
            TOPIC,
            f"torch is built for CUDA {built}, the driver serves {driver}",
            "update the driver, or install an older build",
        )
    names = torch.cuda.get_arch_list() if torch.cuda.is_available() else []
    if not names:
        yield failure(TOPIC, "torch sees no GPU", "look at: python -c 'import torch; torch.cuda.init()'")
        return
    for gpu in found.gpus:
        if gpu.capability is None or gpu.mig:
            continue
        name = "sm_{}{}".format(*gpu.capability)
        if runs_on(names, gpu.capability):
            yield ok(TOPIC, f"{gpu.name} ({name}): torch {torch.__version__} has kernels for it")
        else:
            text = f"{gpu.name} is {name}; torch {torch.__version__} has kernels for {', '.join(names)}"
            yield failure(TOPIC, text, "install a build of torch for it (pytorch.org)")


def runs_on(names: list[str], capability: tuple[int, int]) -> bool:
    """Whether kernels built for `names` run: binaries upwards in their major version, PTX (`compute_`) on all later."""
    for name in names:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name)
        if found is None:
            continue
        built = (int(found[2]), int(found[3]))
        exact_only = name[-1] in "af"
        if exact_only and built != capability:
            continue
        if (found[1] == "compute" and built <= capability) or (built[0] == capability[0] and built <= capability):
            return True
    return False


def _check_memory(gpu: Gpu) -> Iterator[Finding]:
    if gpu.problem:
        yield warning(TOPIC, f"{gpu.name}: {gpu.problem}", "`nvidia-smi` may say more")
    if gpu.total_bytes is None or gpu.free_bytes is None:
        return
    text = f"{gpu.name}: {gib(gpu.free_bytes)} of {gib(gpu.total_bytes)} are free"
    text += " (shared with the system)" if gpu.unified else ""
    holders = ", ".join(_holder(p.pid, p.bytes) for p in gpu.processes or ())
    if gpu.free_bytes < gpu.total_bytes // 10:
        yield warning(TOPIC, text, f"end what holds it: {holders or 'no process can be seen from here'}")
    else:
        yield ok(TOPIC, f"{text}; held by {holders}" if holders else text)


def _holder(pid: int, size: int | None) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = "a process of another container"
    return f"{name} (pid {pid}{f', {gib(size)}' if size else ''})"
