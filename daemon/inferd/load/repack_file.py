"""One file of repacked weights: matrices in the order a kernel reads them.

8 bytes   magic
8 bytes   length of the header, little endian
32 bytes  sha256 of the header
header    JSON: what the file was made for, and every matrix with its place and a checksum
padding   to 4096
data      each matrix at a multiple of 4096
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferd.load.store_files import sync_folder

if TYPE_CHECKING:
    from typing import BinaryIO

    import torch

MAGIC = b"INFDRPK1"
FIXED = 48
ALIGNMENT = 4096
MAX_HEADER = 64 << 20


class RepackError(ValueError):
    """The file cannot be used; the text says why."""


class StoredMatrix(NamedTuple):
    """A prepared weight: one or more matrices of the model that a kernel multiplies at once."""

    kernel: str
    """Name of the kernel that prepared it."""
    forms: tuple[str, ...]
    """Packed forms of the matrices in it."""
    rows: int
    about: dict[str, int]
    """What the kernel needs to know besides the data."""
    data: torch.Tensor
    """Bytes, flat."""


Matrices = Mapping[str, tuple[StoredMatrix, ...]]
"""By the names of the model's matrices that are in the parts."""

Allocate = Callable[[int], mmap.mmap]
"""Returns at least so many writable bytes, at a whole page."""


class _Entry(msgspec.Struct, frozen=True):
    name: str
    kernel: str
    forms: tuple[str, ...]
    rows: int
    about: dict[str, int]
    offset: int
    """From the start of the data."""
    nbytes: int
    checksum: str


class _Header(msgspec.Struct, frozen=True):
    key: str
    entries: tuple[_Entry, ...]
    nbytes: int
    """Of the data."""


def write(path: Path, key: str, matrices: Matrices) -> None:
    """Write a new file and flush it to the disk, then give it its name. Raises OSError, and leaves nothing then."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("xb") as file:
            _write(file, key, matrices)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def anonymous(num_bytes: int) -> mmap.mmap:
    """Return memory on pages of the usual size."""
    return mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def read(path: Path, key: str, allocate: Allocate = anonymous) -> dict[str, tuple[StoredMatrix, ...]]:
    """Read a file that was written for `key`. Raises RepackError for any other content, OSError."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.geteuid(), 0):
            raise RepackError(f"it belongs to user {status.st_uid}")
        header, start = _read_header(file, status.st_size)
        if header.key != key:
            raise RepackError("it was made for something else")
        file.seek(start)
        data = allocate(header.nbytes)
        _fill(memoryview(data)[: header.nbytes], file)
    found: dict[str, tuple[StoredMatrix, ...]] = {}
    for entry in header.entries:
        found[entry.name] = (*found.get(entry.name, ()), _matrix(data, entry))
    return found


def size(matrices: Matrices) -> int:
    """Return about how many bytes the file of these takes."""
    return sum(part.data.nbytes + 2 * ALIGNMENT for parts in matrices.values() for part in parts)


def _write(file: BinaryIO, key: str, matrices: Matrices) -> None:
    entries: list[_Entry] = []
    end = 0
    parts = [(name, part) for name, parts in matrices.items() for part in parts]
    for name, part in parts:
        place = (end, part.data.nbytes, checksum(part.data))
        entries.append(_Entry(name, part.kernel, part.forms, part.rows, part.about, *place))
        end = _aligned(end + part.data.nbytes)
    body = msgspec.json.encode(_Header(key, tuple(entries), end))
    file.write(MAGIC + len(body).to_bytes(8, "little") + hashlib.sha256(body).digest() + body)
    start = _aligned(file.tell())
    for entry, (_, part) in zip(entries, parts, strict=True):
        file.seek(start + entry.offset)
        file.write(memoryview(part.data.numpy()))  # pyright: ignore[reportArgumentType]
    file.truncate(start + end)


def _read_header(file: BinaryIO, num_bytes: int) -> tuple[_Header, int]:
    """Return the header and where the data starts."""
    fixed = file.read(FIXED)
    length = int.from_bytes(fixed[8:16], "little")
    if fixed[:8] != MAGIC or not 0 < length <= min(MAX_HEADER, num_bytes):
        raise RepackError("it is no file of repacked weights of this version")
    body = file.read(length)
    if hashlib.sha256(body).digest() != fixed[16:48]:
        raise RepackError("its header is damaged")
    header = msgspec.json.decode(body, type=_Header)
    start = _aligned(FIXED + length)
    if start + header.nbytes != num_bytes:
        raise RepackError(f"it has {num_bytes} bytes instead of {start + header.nbytes}")
    return header, start


def _fill(rest: memoryview, file: BinaryIO) -> None:
    """Read, not map: mapped, weights would lie on the small pages of the file cache, and steps be slower."""
    while count := file.readinto(rest):  # pyright: ignore[reportAttributeAccessIssue]
        rest = rest[count:]
    if rest:
        raise RepackError(f"it ends {len(rest)} bytes early")


def _matrix(data: mmap.mmap, entry: _Entry) -> StoredMatrix:
    import torch

    values = torch.frombuffer(data, dtype=torch.uint8, count=entry.nbytes, offset=entry.offset)
    if checksum(values) != entry.checksum:
        raise RepackError(f"{entry.name} is damaged")
    return StoredMatrix(entry.kernel, entry.forms, entry.rows, entry.about, values)


def checksum(data: torch.Tensor) -> str:
    """Digest of the sum of all pages, word by word: at the speed of memory, and changed bits or zeroed pages show."""
    import torch

    whole = data.numel() // ALIGNMENT * ALIGNMENT
    sums = data[:whole].view(torch.int64).view(-1, ALIGNMENT // 8).sum(0)
    return hashlib.sha256(bytes(sums.numpy()) + bytes(data[whole:].numpy())).hexdigest()


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
