"""Make new inputs from known ones: bytes changed blindly, or values of a tree (JSON, msgpack) changed by type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MAX_BYTES = 1 << 17
MAX_REPEATS = 400
INTEGERS = (0, 1, -1, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1e-320, -1.0, 0.5, 1e30, 1e308, math.inf, -math.inf, math.nan)
STRINGS = (
    "",
    "\0",
    "a",
    "\ud83d",
    "é" * 40,
    "%s%n{}",
    "../../etc/passwd",
    "<|im_end|>",
    "x" * 3000,
    "\x1b[2J",
    "9" * 400,
)


def mutate(rng: Random, seed: bytes, others: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Return `seed` after one to six changes."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_CHANGES)(rng, data, others, tokens)
        del data[MAX_BYTES:]
    return bytes(data)


def mutate_value(rng: Random, value: Any, depth: int = 0) -> Any:
    """Return a tree with one part of it changed: another value, another type, a key lost or invented."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return value | {_scalar_key(rng): _invent(rng)}
            case _:
                return value | {key: mutate_value(rng, value[key], depth + 1)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value * rng.choice((2, 10, 200))
            case _:
                return [*value[:at], mutate_value(rng, value[at], depth + 1), *value[at + 1 :]]
    if rng.random() < 0.1:
        return _nest(rng, value)
    return _invent(rng)


def _invent(rng: Random) -> Any:
    return rng.choice(
        (rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(STRINGS), None, True, False, [], {}, [None] * 5)
    )


def _scalar_key(rng: Random) -> str:
    return rng.choice(("id", "type", "x" * 100, "", "n", "$ref", "seed"))


def _nest(rng: Random, value: Any) -> Any:
    for _ in range(rng.choice((2, 20, 90))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


# --- bytes ------------------------------------------------------------------------------------

Change = Callable[[Random, bytearray, Sequence[bytes], Sequence[bytes]], None]


def _at(rng: Random, data: bytearray) -> int:
    """A place, more often near the start, where headers are."""
    end = len(data) + 1
    return rng.randrange(min(64, end)) if rng.random() < 0.3 else rng.randrange(end)


def _slice(rng: Random, data: bytearray, most: int = 64) -> tuple[int, int]:
    start = _at(rng, data)
    return start, min(len(data), start + rng.randint(1, most))


def _flip(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    if data:
        data[min(_at(rng, data), len(data) - 1)] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    if data:
        data[min(_at(rng, data), len(data) - 1)] = rng.choice(
            (0, 1, 0x7F, 0x80, 0xFF, 0xC1, 0x22, 0x7B, rng.randrange(256))
        )


def _number(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    size = rng.choice((1, 2, 4, 8))
    value = (rng.choice(INTEGERS) + rng.randint(-2, 2)) % (1 << 8 * size)
    start = _at(rng, data)
    data[start : start + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _delete(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    start, end = _slice(rng, data)
    del data[start:end]


def _cut(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    del data[_at(rng, data) :]


def _repeat(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    start, end = _slice(rng, data, 16)
    data[start:start] = bytes(data[start:end]) * rng.choice((1, 2, 30, MAX_REPEATS))


def _insert(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    start = _at(rng, data)
    data[start:start] = rng.choice(tokens) if tokens else rng.randbytes(4)


def _noise(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    start = _at(rng, data)
    data[start:start] = rng.randbytes(rng.choice((1, 4, 40)))


def _splice(rng: Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    other = bytearray(rng.choice(others))
    data[_at(rng, data) :] = other[_at(rng, other) :]


_CHANGES: tuple[Change, ...] = (
    _flip,
    _set,
    _number,
    _number,
    _delete,
    _cut,
    _repeat,
    _insert,
    _insert,
    _noise,
    _splice,
)
