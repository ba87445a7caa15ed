"""What the machine is, so that numbers can be compared later."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

import torch
import triton

from inferd_kernels.triton.tiling import table
from tests.gpu.bench import Bench


def run(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "tiles": sorted(table(torch.device(bench.device))),
    }
    if not bench.dry:
        properties = torch.cuda.get_device_properties(bench.device)
        found |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "processors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "smi": _smi(),
        }
    return found


def _smi() -> str:
    query = "--query-gpu=driver_version,power.limit,clocks.max.sm,clocks.max.mem,ecc.mode.current"
    try:
        return subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout
    except OSError as error:
        return str(error)
