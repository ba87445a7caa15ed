"""Tune the kernels of this machine's GPU and keep the result where they look for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferd_kernels.available import why_no_triton


def tune_kernels(device: str, out: Path | None, on_case: Callable[[str, str], None]) -> Path:
    """Return the file written; `on_case` hears each case and what was found for it.

    Raises ValueError where there is nothing to tune, or the file cannot be written.
    """
    missing = _no_gpu(device) or why_no_triton(device)
    if missing:
        raise ValueError(missing)
    from inferd_kernels.triton.tune import gpu_seconds, table_path, tune, write

    path = out or table_path(device)
    if not path.parent.is_dir():
        raise ValueError(f"no folder {path.parent}")
    table = tune(
        device, gpu_seconds, on_case=lambda name, tiles, seconds: on_case(name, f"{seconds * 1e6:.0f} us {dict(tiles)}")
    )
    try:
        write(table, path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; give a file with --out") from error
    return path


def _no_gpu(device: str) -> str:
    from inferd.engine.device import is_there

    return "" if is_there(device) or not device.startswith("cuda") else f"no device {device} on this machine"
