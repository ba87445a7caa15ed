"""GGUF tensor types decoded one value at a time, in double precision, from the ggml block layouts.

Slow and plain on purpose: this is what codecs are compared with. Layouts: ggml-common.h (block_q4_0
and the following structs); the formulas are those of the format's reference dequantisation.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import NamedTuple


class BlockType(NamedTuple):
    """One storage type: values and bytes a block, how to read one, where its half floats are."""

    values: int
    nbytes: int
    decode: Callable[[bytes], list[float]]
    halves: tuple[int, ...]


def _half(block: bytes, offset: int) -> float:
    return struct.unpack_from("<e", block, offset)[0]


def _nibbles(codes: bytes) -> list[int]:
    """Low nibbles of all bytes, then the high ones."""
    return [c & 15 for c in codes] + [c >> 4 for c in codes]


def _fifth_bits(block: bytes, offset: int) -> list[int]:
    bits = struct.unpack_from("<I", block, offset)[0]
    return [(bits >> i & 1) << 4 for i in range(32)]


def _q4_0(block: bytes) -> list[float]:
    scale = _half(block, 0)
    return [scale * (q - 8) for q in _nibbles(block[2:18])]


def _q4_1(block: bytes) -> list[float]:
    scale, least = _half(block, 0), _half(block, 2)
    return [scale * q + least for q in _nibbles(block[4:20])]


def _q5_0(block: bytes) -> list[float]:
    scale = _half(block, 0)
    codes = zip(_nibbles(block[6:22]), _fifth_bits(block, 2), strict=True)
    return [scale * ((low | high) - 16) for low, high in codes]


def _q5_1(block: bytes) -> list[float]:
    scale, least = _half(block, 0), _half(block, 2)
    codes = zip(_nibbles(block[8:24]), _fifth_bits(block, 4), strict=True)
    return [scale * (low | high) + least for low, high in codes]


def _q8_0(block: bytes) -> list[float]:
    scale = _half(block, 0)
    return [scale * q for q in struct.unpack_from("<32b", block, 2)]


def _six_bit(scales: bytes) -> list[tuple[int, int]]:
    """Scale and minimum of the eight sub-blocks of a K block."""
    first = [(scales[i] & 63, scales[i + 4] & 63) for i in range(4)]
    second = [
        (scales[i + 8] & 15 | scales[i] >> 6 << 4, scales[i + 8] >> 4 | scales[i + 4] >> 6 << 4) for i in range(4)
    ]
    return first + second


def _q4_k(block: bytes) -> list[float]:
    scale, least = _half(block, 0), _half(block, 2)
    out: list[float] = []
    for sub, (sc, mn) in enumerate(_six_bit(block[4:16])):
        codes = block[16 + 32 * (sub // 2) :][:32]
        out += [scale * sc * (c >> 4 if sub % 2 else c & 15) - least * mn for c in codes]
    return out


def _q5_k(block: bytes) -> list[float]:
    scale, least = _half(block, 0), _half(block, 2)
    high, out = block[16:48], list[float]()
    for sub, (sc, mn) in enumerate(_six_bit(block[4:16])):
        codes = block[48 + 32 * (sub // 2) :][:32]
        for c, bits in zip(codes, high, strict=True):
            q = (c >> 4 if sub % 2 else c & 15) | (bits >> sub & 1) << 4
            out.append(scale * sc * q - least * mn)
    return out


def _q6_k(block: bytes) -> list[float]:
    scales, scale = struct.unpack_from("<16b", block, 192), _half(block, 208)
    out: list[float] = []
    for i in range(256):
        half, quarter, lane = i // 128, i % 128 // 32, i % 32
        low = block[64 * half + 32 * (quarter % 2) + lane]
        high = block[128 + 32 * half + lane]
        code = (low >> 4 if quarter > 1 else low & 15) | (high >> 2 * quarter & 3) << 4
        out.append(scale * scales[i // 16] * (code - 32))
    return out


TYPES: dict[str, BlockType] = {
    "Q4_0": BlockType(32, 18, _q4_0, (0,)),
    "Q4_1": BlockType(32, 20, _q4_1, (0, 2)),
    "Q5_0": BlockType(32, 22, _q5_0, (0,)),
    "Q5_1": BlockType(32, 24, _q5_1, (0, 2)),
    "Q8_0": BlockType(32, 34, _q8_0, (0,)),
    "Q4_K": BlockType(256, 144, _q4_k, (0, 2)),
    "Q5_K": BlockType(256, 176, _q5_k, (0, 2)),
    "Q6_K": BlockType(256, 210, _q6_k, (208,)),
}


def random_rows(type_: str, rows: int, columns: int, seed: int) -> tuple[bytes, list[list[float]]]:
    """Return a tensor of this storage type as bytes, and its values."""
    kind, rng = TYPES[type_], random.Random(f"{type_} {seed}")
    data, values = bytearray(), []
    for _ in range(rows):
        row: list[float] = []
        for _ in range(columns // kind.values):
            block = _random_block(kind, rng)
            data += block
            row += kind.decode(block)
        values.append(row)
    return bytes(data), values


def _random_block(kind: BlockType, rng: random.Random) -> bytes:
    block = bytearray(rng.randbytes(kind.nbytes))
    for offset in kind.halves:
        struct.pack_into("<e", block, offset, rng.uniform(-1.0, 1.0) * 2.0 ** rng.randint(-8, 0))
    return bytes(block)
