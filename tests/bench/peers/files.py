"""The model in the formats that peers are fastest with, made from one GGUF file by llama-quantize."""

from __future__ import annotations

import subprocess
from pathlib import Path

PURE = {"Q4_0", "Q4_1"}
"""Every matrix in the format, the embedding too: the fewest bytes."""


def quantised(source: Path, kind: str, tools: Path, folder: Path) -> Path:
    """Return `source` requantised to `kind` (Q4_0, Q8_0, F16...), made at the first call.

    Such a file is for speed alone: requantising costs quality.
    """
    target = folder / f"{source.stem}-as-{kind}.gguf"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    options = ["--allow-requantize", *(["--pure"] if kind in PURE else [])]
    command = [tools / "llama-quantize", *options, source, partial, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"llama-quantize {kind}: {done.stderr[-500:]}")
    partial.rename(target)
    return target
