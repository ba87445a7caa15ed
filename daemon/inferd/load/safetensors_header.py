"""Check a safetensors header before the official library reads the file.

Format: https://github.com/huggingface/safetensors#format. Bounds come from the file size; the byte
ranges must cover the data section exactly, without overlap or holes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from inferd.load.errors import LoadError
from inferd.plugin.types import TensorMeta

MAX_HEADER_BYTES = 32 << 20
MAX_DIMS = 8

DTYPE_BITS = {
    "F4": 4,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def read_header(path: Path) -> dict[str, TensorMeta]:
    """Return the tensors of one file. Raises LoadError naming file and tensor."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise LoadError(f"{path}: header of {length} bytes in a file of {size} (truncated?)")
            if length > MAX_HEADER_BYTES:
                raise LoadError(f"{path}: header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
            raw = file.read(length)
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from None
    return _check(path, _parse(path, raw), size - 8 - length)


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: header: {error}") from None
    if not isinstance(header, dict):
        raise LoadError(f"{path}: header: must be a JSON object")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise LoadError(f"{path}: __metadata__ must map strings to strings")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"{name!r:.80} appears twice")
        out[name] = value
    return out


def _check(path: Path, header: Mapping[str, Any], data_bytes: int) -> dict[str, TensorMeta]:
    ranges: list[tuple[int, int, str]] = []
    metas: dict[str, TensorMeta] = {}
    for name, entry in header.items():
        metas[name], start, end = _entry(path, name, entry)
        ranges.append((start, end, name))
    covered = 0
    for start, end, name in sorted(ranges):
        if start != covered:
            what = "overlaps the tensor before it" if start < covered else "leaves a hole before it"
            raise LoadError(f"{path}: tensor {name}: range {start}..{end} {what} (data so far ends at {covered})")
        covered = end
    if covered != data_bytes:
        what = "is truncated" if covered > data_bytes else "has bytes that belong to no tensor"
        raise LoadError(f"{path}: {what}: its tensors take {covered} bytes, the data section has {data_bytes}")
    return metas


def _entry(path: Path, name: str, entry: Any) -> tuple[TensorMeta, int, int]:
    """Return (meta, start, end) of one tensor, its range equal to what shape and dtype need."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if len(entry) == 3:
            pass
        case _:
            raise LoadError(f"{path}: tensor {name}: must have dtype, shape and data_offsets only")
    if dtype not in DTYPE_BITS:
        raise LoadError(f"{path}: tensor {name}: unknown dtype {dtype!r}")
    if len(shape) > MAX_DIMS or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise LoadError(f"{path}: tensor {name}: bad shape {shape!r:.80}")
    need = prod(shape) * DTYPE_BITS[dtype]
    if type(start) is not int or type(end) is not int or start < 0 or end < start or (end - start) * 8 != need:
        raise LoadError(f"{path}: tensor {name}: range {start}..{end} does not hold {shape} of {dtype}")
    return TensorMeta(name, tuple(shape), dtype), start, end
