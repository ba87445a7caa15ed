"""A minimal GGUF file as a list of named header fields, so that a test can falsify any one of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

Fields = list[tuple[str, str, int | bytes]]
"""(name, struct code, value); an empty code means raw bytes."""

ALIGNMENT = 32
VALUES = (b"\x01\x02\x03\x04" * 32, b"\x05\x06\x07\x08" * 16)


def _string(name: str, text: bytes) -> Fields:
    return [(f"{name} length", "Q", len(text)), (name, "", text)]


def _tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> Fields:
    return [
        *_string(f"{name} name", name.encode()),
        (f"{name} num dims", "I", len(dims)),
        *((f"{name} dim {i}", "Q", dim) for i, dim in enumerate(dims)),
        (f"{name} type", "I", kind),
        (f"{name} offset", "Q", offset),
    ]


def header() -> Fields:
    """Two F32 tensors and one metadata value of each shape: scalar, string, arrays, nested array."""
    return [
        ("magic", "", b"GGUF"),
        ("version", "I", 3),
        ("num tensors", "Q", 2),
        ("num keys", "Q", 6),
        *_string("alignment key", b"general.alignment"),
        ("alignment type", "I", 4),
        ("alignment", "I", ALIGNMENT),
        *_string("architecture key", b"general.architecture"),
        ("architecture type", "I", 8),
        *_string("architecture", b"llama"),
        *_string("flag key", b"a.flag"),
        ("flag type", "I", 7),
        ("flag", "B", 1),
        *_string("numbers key", b"a.numbers"),
        ("numbers type", "I", 9),
        ("numbers item type", "I", 5),
        ("numbers count", "Q", 3),
        ("numbers", "", struct.pack("<3i", 1, -2, 3)),
        *_string("words key", b"a.words"),
        ("words type", "I", 9),
        ("words item type", "I", 8),
        ("words count", "Q", 2),
        *_string("first word", b"ab"),
        *_string("second word", b"c"),
        *_string("nested key", b"a.nested"),
        ("nested type", "I", 9),
        ("nested item type", "I", 9),
        ("nested count", "Q", 1),
        ("inner item type", "I", 0),
        ("inner count", "Q", 2),
        ("inner", "", b"\x07\x08"),
        *_tensor("one", (16, 2), 0, 0),
        *_tensor("two", (16,), 0, 128),
    ]


def build(changes: Mapping[str, int | bytes] | None = None, data: bytes = b"".join(VALUES)) -> bytes:
    """Return the file with some fields replaced."""
    left = dict(changes or {})
    out = b""
    for name, code, value in header():
        value = left.pop(name, value)
        if isinstance(value, bytes):
            out += value
        else:
            out += struct.pack("<" + code, value)
    if left:
        raise KeyError(f"no such fields: {sorted(left)}")
    return out + b"\0" * (-len(out) % ALIGNMENT) + data
