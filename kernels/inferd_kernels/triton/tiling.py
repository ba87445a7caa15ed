"""Tile sizes of the kernels: one JSON file an architecture or device, the same format as `inferd tune kernels` writes.

A file maps kernel -> case -> {"BLOCK_M": ..., "num_warps": ..., "num_stages": ...}. A device's own file is laid over
that of its architecture, so it may hold only what was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

FOLDER = Path(__file__).parent / "tiles"
ARCHITECTURES = (80, 89, 90, 100)
"""Compute capabilities, times ten, that have a file of their own."""

Tiles = Mapping[str, int]
"""Constants of one launch by name, and options of the compiler: `num_warps`, `num_stages`, and `maxnreg`, the registers
that a thread may have (without it the assembler rather spills a few bytes than let fewer programs run at once)."""
Table = Mapping[str, Mapping[str, Tiles]]


@triton.jit
def _probe() -> None:
    pass


def interpreted() -> bool:
    """Say whether kernels run in Triton's interpreter, on the CPU."""
    return isinstance(_probe, InterpretedFunction)


def read(name: str) -> Table:
    """Return the table of one file; empty where there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def overlay(base: Table, changes: Table) -> Table:
    """Return `base` with the cases of `changes` in place of its own."""
    return {kernel: {**base.get(kernel, {}), **changes.get(kernel, {})} for kernel in {*base, *changes}}


def architecture(capability: int) -> str:
    """Return the file for a compute capability: its own, or the newest one before it. Raises ValueError."""
    older = [cc for cc in ARCHITECTURES if cc <= capability]
    if not older:
        raise ValueError(f"compute capability {capability / 10} is too old: the kernels need 8.0")
    return f"sm_{max(older)}"


def device_name(name: str) -> str:
    """Return the file name of a device's own table."""
    return re.sub(r"\W+", "_", name).strip("_")


@cache
def table(device: torch.device) -> Table:
    """Return the tile sizes for a device."""
    if device.type != "cuda":
        return read("interpreter")
    major, minor = torch.cuda.get_device_capability(device)
    return overlay(read(architecture(10 * major + minor)), read(device_name(torch.cuda.get_device_name(device))))


def tiles_for(kernel: str, case: str, device: torch.device) -> Tiles:
    """Return the tile sizes of one launch; `default` serves cases that the table does not name."""
    cases = table(device)[kernel]
    return cases.get(case) or cases["default"]


@cache
def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; few in the interpreter, which runs them one by one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
