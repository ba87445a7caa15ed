"""Whether Triton kernels can run on a device. Imports Triton only where they might: it takes 100 MB of a process."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

LEAST_CAPABILITY = (8, 0)
"""Compute capability of the oldest GPU that the kernels are compiled for."""


def runs_on_triton(device: str, *, asked: bool = False) -> bool:
    """Say whether models on `device` run on Triton kernels: on a GPU that can, and in the interpreter where asked."""
    return (asked or device.startswith("cuda")) and not why_no_triton(device)


def why_no_triton(device: str) -> str:
    """Return why Triton kernels cannot run on tensors of `device`; empty = they can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    kind = device.split(":")[0]
    if kind != "cuda" and "triton" not in sys.modules and not os.environ.get("TRITON_INTERPRET"):
        return f"Triton kernels run on GPUs, not on {kind}"
    from inferd_kernels.triton.tiling import interpreted

    if kind == "cuda":
        return "Triton's interpreter is on, which runs on the CPU" if interpreted() else _too_old(device)
    if kind == "cpu" and interpreted():
        return ""
    return f"Triton kernels run on GPUs, not on {kind}"


def _too_old(device: str) -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    found = torch.cuda.get_device_capability(device)
    least, this = (".".join(map(str, pair)) for pair in (LEAST_CAPABILITY, found))
    return "" if found >= LEAST_CAPABILITY else f"Triton kernels need a GPU of compute capability {least}, not {this}"
