"""Bounded reading of GGUF fields: nothing is allocated before its size was checked."""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any

from inferd.load.errors import LoadError
from inferd.load.gguf_types import MAX_ARRAY_ITEMS, MAX_DEPTH, MAX_STRING_BYTES, SCALARS, ValueType

_U64 = struct.Struct("<Q")


class Cursor:
    """A read position in a mapped file. Every method raises LoadError naming file and field."""

    def __init__(self, data: mmap, file: str) -> None:
        self.data = data
        self.file = file
        self.position = 0
        self._items_left = MAX_ARRAY_ITEMS

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def fail(self, field: str, reason: str) -> LoadError:
        return LoadError(f"{self.file}: {field}: {reason}")

    def need(self, num_bytes: int, field: str) -> None:
        """Check that this many bytes are left."""
        if num_bytes > self.left:
            raise self.fail(
                field, f"needs {num_bytes} bytes at offset {self.position}, the file has {self.left} left (truncated?)"
            )

    def scalar(self, code: str, field: str) -> Any:
        """Read one number of the given struct code."""
        layout = struct.Struct("<" + code)
        self.need(layout.size, field)
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return value

    def string(self, field: str, limit: int = MAX_STRING_BYTES) -> str:
        """Read a length-prefixed UTF-8 string of at most `limit` bytes."""
        length = self.scalar("Q", field)
        if length > limit:
            raise self.fail(field, f"string of {length} bytes, at most {limit} are allowed")
        self.need(length, field)
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(field, f"not UTF-8 at byte {error.start}") from None

    def value_type(self, field: str) -> ValueType:
        code = self.scalar("I", field)
        try:
            return ValueType(code)
        except ValueError:
            raise self.fail(field, f"unknown value type {code}") from None

    def value(self, kind: ValueType, field: str, depth: int = 0) -> Any:
        """Read one metadata value."""
        if kind is ValueType.STRING:
            return self.string(field)
        if kind is ValueType.ARRAY:
            return self._array(field, depth)
        number = self.scalar(SCALARS[kind], field)
        return _as_bools(self, [number], field)[0] if kind is ValueType.BOOL else number

    def _array(self, field: str, depth: int) -> list[Any]:
        if depth == MAX_DEPTH:
            raise self.fail(field, f"arrays nested deeper than {MAX_DEPTH}")
        kind = self.value_type(field)
        count = self.scalar("Q", field)
        if count > self._items_left:
            raise self.fail(field, f"array of {count} items, at most {MAX_ARRAY_ITEMS} are allowed in a file")
        self._items_left -= count
        if kind in SCALARS:
            return self._numbers(kind, count, field)
        least = 12 if kind is ValueType.ARRAY else 8
        self.need(count * least, field)
        if kind is ValueType.STRING:
            return self._strings(count, field)
        return [self.value(kind, field, depth + 1) for _ in range(count)]

    def _numbers(self, kind: ValueType, count: int, field: str) -> list[Any]:
        layout = struct.Struct(f"<{count}{SCALARS[kind]}")
        self.need(layout.size, field)
        values = list(layout.unpack_from(self.data, self.position))
        self.position += layout.size
        return _as_bools(self, values, field) if kind is ValueType.BOOL else values

    def _strings(self, count: int, field: str) -> list[str]:
        """Read many strings; vocabularies hold hundreds of thousands, so this loop is kept tight."""
        data, position, end = self.data, self.position, len(self.data)
        out: list[str] = []
        for index in range(count):
            start = position + 8
            length = _U64.unpack_from(data, position)[0] if start <= end else end
            position = start + length
            if position > end or length > MAX_STRING_BYTES:
                raise self.fail(f"{field}[{index}]", f"string of {length} bytes does not fit in the file (truncated?)")
            try:
                out.append(data[start:position].decode("utf-8"))
            except UnicodeDecodeError as error:
                raise self.fail(f"{field}[{index}]", f"not UTF-8 at byte {error.start}") from None
        self.position = position
        return out


def _as_bools(cursor: Cursor, values: list[int], field: str) -> list[bool]:
    if max(values, default=0) > 1:
        raise cursor.fail(field, f"a bool must be 0 or 1, not {max(values)}")
    return [value == 1 for value in values]
