"""GGUF block formats as codecs into packed forms, vectorised over all blocks of a tensor.

Layouts: ggml's `ggml-common.h` (block structures) and `ggml-quants.c`. A codec gets the blocks as
uint8 [blocks, bytes a block] and returns planes over flat blocks; `pack_blocks` shapes them to rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from inferd.plugin.types import Form


class Planes(NamedTuple):
    """Codes and scales of a run of blocks, in column order."""

    codes: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None = None


class Codec(NamedTuple):
    form: Form
    values: int
    """Values in a block."""
    bytes: int
    """Bytes of a block."""
    group: int
    """Values that share a scale."""
    unpack: Callable[[torch.Tensor], Planes]
    zero: int = 0


def q4_0(blocks: torch.Tensor) -> Planes:
    """Scale fp16, 16 bytes of nibbles; value = scale * (code - 8)."""
    return Planes(_interleave(blocks[:, 2:18]), _half(blocks, 0))


def q4_1(blocks: torch.Tensor) -> Planes:
    """Scale and min fp16, 16 bytes of nibbles."""
    return Planes(_interleave(blocks[:, 4:20]), _half(blocks, 0), _half(blocks, 2))


def q5_0(blocks: torch.Tensor) -> Planes:
    """Scale fp16, 32 fifth bits, 16 bytes of nibbles; value = scale * (code - 16)."""
    return Planes(_five_bits(blocks[:, 2:6], blocks[:, 6:22]).sub_(16), _half(blocks, 0))


def q5_1(blocks: torch.Tensor) -> Planes:
    """Scale and min fp16, 32 fifth bits, 16 bytes of nibbles."""
    return Planes(_five_bits(blocks[:, 4:8], blocks[:, 8:24]), _half(blocks, 0), _half(blocks, 2))


def q8_0(blocks: torch.Tensor) -> Planes:
    """Scale fp16, 32 signed bytes."""
    return Planes(blocks[:, 2:34].contiguous().view(torch.int8), _half(blocks, 0))


def q4_k(blocks: torch.Tensor) -> Planes:
    """Super-block of 8 groups: d, dmin fp16, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles."""
    scales, mins = _k_scales(blocks)
    nibbles = blocks[:, 16:144].reshape(-1, 32)  # 32 bytes hold group 2i (low) and 2i + 1 (high)
    low, high = _pair_up(nibbles & 15), _pair_up(nibbles >> 4)
    return Planes(torch.cat([low, high], dim=1), scales, mins)


def q5_k(blocks: torch.Tensor) -> Planes:
    """Like q4_k with 32 bytes of fifth bits (bit g of byte c belongs to group g, column c)."""
    scales, mins = _k_scales(blocks)
    low = _two_nibbles(blocks[:, 48:176].reshape(-1, 4, 1, 32)).view(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    return Planes(low.bitwise_or_(high << 4).view(torch.int8), scales, mins)


def q6_k(blocks: torch.Tensor) -> Planes:
    """Super-block of 16 groups: 128 bytes of low nibbles, 64 of high bit pairs, 16 scales int8, d fp16.

    Each half of 128 values has 64 low bytes (columns 0..63 low, 64..127 high nibble) and 32 high bytes
    of four bit pairs (32 columns each).
    """
    low = _two_nibbles(blocks[:, :128].reshape(-1, 2, 1, 64)).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = low.bitwise_or_(high << 4).view(torch.int8).sub_(32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).to(torch.float32)
    return Planes(codes, _half(blocks, 208).to(torch.float32) * scales)


CODECS: dict[str, Codec] = {
    "Q4_0": Codec("u4_group", 32, 18, 32, q4_0, zero=8),
    "Q4_1": Codec("u4_group", 32, 20, 32, q4_1),
    "Q5_0": Codec("i8_group", 32, 22, 32, q5_0),
    "Q5_1": Codec("i8_group", 32, 24, 32, q5_1),
    "Q8_0": Codec("i8_group", 32, 34, 32, q8_0),
    "Q4_K": Codec("u4_group", 256, 144, 32, q4_k),
    "Q5_K": Codec("i8_group", 256, 176, 32, q5_k),
    "Q6_K": Codec("i8_group", 256, 210, 16, q6_k),
}


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the fp16 number at byte `at` of every block, [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _interleave(nibbles: torch.Tensor) -> torch.Tensor:
    """Turn 16 bytes (low nibbles = columns 0..15, high = 16..31) into pairs of neighbouring columns."""
    words = nibbles.contiguous().view(torch.int16)
    low = (words & 15) | ((words >> 4) & 0xF0)
    high = ((words >> 4) & 15) | ((words >> 8) & 0xF0)
    return torch.cat([low, high], dim=1).to(torch.uint8)


def _pair_up(codes: torch.Tensor) -> torch.Tensor:
    """Pack neighbouring columns into bytes, low nibble first."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def _two_nibbles(raw: torch.Tensor) -> torch.Tensor:
    """Return [..., 2, bytes]: the low nibbles of all bytes, then the high ones; raw is [..., 1, bytes]."""
    return torch.cat([raw & 15, raw >> 4], dim=-2)


def _five_bits(high: torch.Tensor, nibbles: torch.Tensor) -> torch.Tensor:
    """Join 32 fifth bits (little endian) with the nibbles of a block; int8 [blocks, 32]."""
    low = _two_nibbles(nibbles.unsqueeze(1)).view(-1, 32)
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = ((high.unsqueeze(-1) >> shifts) & 1).view(-1, 32)
    return low.bitwise_or_(bits << 4).view(torch.int8)


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 scales d * sc and mins -(dmin * m), [blocks, 8].

    Bytes 4..7 hold six bits of sc 0..3, bytes 8..11 of m 0..3; bytes 12..15 the low nibbles of sc and
    m 4..7, whose top two bits are the spare ones of the first eight bytes.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    sc = torch.cat([first & 63, (rest & 15) | ((first >> 2) & 48)], dim=1)
    m = torch.cat([second & 63, (rest >> 4) | ((second >> 2) & 48)], dim=1)
    d, dmin = _half(blocks, 0).to(torch.float32), _half(blocks, 2).to(torch.float32)
    return d * sc.to(torch.float32), (dmin * m.to(torch.float32)).neg_()
