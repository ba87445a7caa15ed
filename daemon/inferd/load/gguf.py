"""Read GGUF files: a bounded header reader in pure Python and per-tensor memory maps.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every length, count, offset and
dimension is checked against the file size and the caps of `gguf_types` before it is used.
"""

from __future__ import annotations

import mmap
from math import prod
from pathlib import Path
from typing import Any

from inferd.load.errors import LoadError
from inferd.load.gguf_cursor import Cursor
from inferd.load.gguf_types import (
    BLOCK_TYPES,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NAME_BYTES,
    MAX_TENSORS,
    VERSIONS,
    GgufTensor,
    ValueType,
)

_LEAST_KEY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


class GgufFile:
    """The header of one GGUF file: metadata and where each tensor lies. Raises LoadError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file, _map(file, path) as data:
                self._read(Cursor(data, str(path)))
        except OSError as error:
            raise LoadError(f"{path}: {error.strerror or error}") from None

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    alignment: int

    def bytes_of(self, tensor: GgufTensor) -> memoryview:
        """Map the bytes of one tensor; the map lives as long as the view. Copy on write."""
        start = tensor.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        skip = tensor.offset - start
        try:
            with self.path.open("rb") as file:
                data = mmap.mmap(file.fileno(), skip + tensor.nbytes, offset=start, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise LoadError(f"{self.path}: tensor {tensor.name}: cannot be mapped: {error}") from None
        return memoryview(data)[skip:]

    def _read(self, cursor: Cursor) -> None:
        num_tensors, num_keys = _read_preamble(cursor)
        self.metadata = _read_metadata(cursor, num_keys)
        self.alignment = _check_alignment(cursor, self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        infos = [_read_tensor_info(cursor, index) for index in range(num_tensors)]
        data_start = -(-cursor.position // self.alignment) * self.alignment
        self.tensors = _place(cursor, infos, data_start, self.alignment)


def _map(file: Any, path: Path) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise LoadError(f"{path}: the file is empty") from None


def _read_preamble(cursor: Cursor) -> tuple[int, int]:
    """Return (number of tensors, number of metadata keys)."""
    cursor.need(4, "magic")
    magic = cursor.data[:4]
    cursor.position = 4
    if magic != MAGIC:
        raise cursor.fail("magic", f"{magic!r} is not {MAGIC!r}: no GGUF file")
    version = cursor.scalar("I", "version")
    if version not in VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        reason = "a big-endian file" if big_endian else f"GGUF version {version}"
        raise cursor.fail("version", f"{reason} is not supported (versions {VERSIONS[0]} and {VERSIONS[1]} are)")
    num_tensors = cursor.scalar("Q", "tensor count")
    num_keys = cursor.scalar("Q", "metadata count")
    if num_tensors > MAX_TENSORS or num_tensors * _LEAST_TENSOR_BYTES > cursor.left:
        raise cursor.fail("tensor count", f"{num_tensors} tensors do not fit in a file of {len(cursor.data)} bytes")
    if num_keys > MAX_KEYS or num_keys * _LEAST_KEY_BYTES > cursor.left:
        raise cursor.fail("metadata count", f"{num_keys} keys do not fit in a file of {len(cursor.data)} bytes")
    return num_tensors, num_keys


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
        if not key or key in metadata:
            raise cursor.fail(f"metadata key {index}", f"duplicate key {key!r}" if key else "empty key")
        kind = cursor.value_type(key)
        if key == "general.alignment" and kind is not ValueType.UINT32:
            raise cursor.fail(key, f"must be a UINT32, not {kind.name}")
        metadata[key] = cursor.value(kind, key)
    return metadata


def _check_alignment(cursor: Cursor, alignment: int) -> int:
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail("general.alignment", f"{alignment} is not a power of two from 8 to {MAX_ALIGNMENT}")
    return alignment


def _read_tensor_info(cursor: Cursor, index: int) -> GgufTensor:
    """Read one tensor entry; its offset is still relative to the data section."""
    name = cursor.string(f"name of tensor {index}", MAX_NAME_BYTES)
    field = f"tensor {name}"
    num_dims = cursor.scalar("I", field)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fail(field, f"{num_dims} dimensions, 1 to {MAX_DIMS} are allowed")
    dims = [cursor.scalar("Q", field) for _ in range(num_dims)]
    if 0 in dims:
        raise cursor.fail(field, f"a dimension of {dims} is zero")
    code = cursor.scalar("I", field)
    if code not in BLOCK_TYPES:
        raise cursor.fail(field, f"unknown tensor type {code}")
    block = BLOCK_TYPES[code]
    if dims[0] % block.values:
        raise cursor.fail(
            field, f"rows of {dims[0]} values are no multiple of the {block.values} of a {block.name} block"
        )
    nbytes = prod(dims) // block.values * block.bytes
    return GgufTensor(name, tuple(reversed(dims)), block.name, cursor.scalar("Q", field), nbytes)


def _place(cursor: Cursor, infos: list[GgufTensor], data_start: int, alignment: int) -> dict[str, GgufTensor]:
    """Check the byte ranges and make the offsets absolute."""
    end = 0
    placed: dict[str, GgufTensor] = {}
    data_bytes = max(0, len(cursor.data) - data_start)
    for info in sorted(infos, key=lambda info: info.offset):
        field = f"tensor {info.name}"
        if info.name in placed:
            raise cursor.fail(field, "appears twice")
        if info.offset % alignment:
            raise cursor.fail(field, f"offset {info.offset} is no multiple of the alignment {alignment}")
        if info.offset < end:
            raise cursor.fail(field, f"offset {info.offset} lies inside the tensor before it, which ends at {end}")
        end = info.offset + info.nbytes
        if end > data_bytes:
            raise cursor.fail(field, f"ends at byte {end} of a data section of {data_bytes} bytes (truncated?)")
        placed[info.name] = GgufTensor(info.name, info.shape, info.type, data_start + info.offset, info.nbytes)
    return {info.name: placed[info.name] for info in infos}
