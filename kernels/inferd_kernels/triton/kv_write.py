"""Store a step's keys and values and prepare its queries, in one pass.

    y = rope(x / sqrt(mean(x^2) + eps) * weight)          queries and keys, norm and rotation where asked for
    cache[slot] = y, or round(y / s) with s = max|y| / 127 (int8) or max|y| / 448 (fp8)   per token and head

Rotation is the rotate-half convention over the first `dim` channels. A negative slot is a padding row: nothing is
stored. The shared plain version for float caches is `inferd_kernels.reference.kv_write`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.reference.kv_write import norm_rope, scatter
from inferd_kernels.reference.rope import rotation
from inferd_kernels.triton.attn_prefill import KVCache

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest stored value of the 8-bit formats."""
BLOCK_H = 8
"""Heads a program takes."""


class HeadNorms(NamedTuple):
    """Weights [head_dim] of the norms over each head."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float


class RopeTables(NamedTuple):
    """Tables [context, dim] float32, both halves equal."""

    cos: torch.Tensor
    sin: torch.Tensor


def quantize_heads(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [T, heads, width] of an 8-bit dtype and their scales [T, heads, 1] float32."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST[dtype]
    values = x.float() / scale.where(scale > 0, 1.0)
    return (torch.floor(values + 0.5) if dtype == torch.int8 else values).to(dtype), scale


def kv_write_reference(
    x: Any, kv: KVCache, slots: torch.Tensor, positions: torch.Tensor, norms: HeadNorms | None, rope: RopeTables | None
) -> torch.Tensor:
    """Return what `kv_write` returns, storing what it stores."""
    turn = rotation(rope.cos, rope.sin, positions) if rope else None
    eps = norms.eps if norms else 0.0
    keys = norm_rope(x.k, norms.k if norms else None, eps, turn)
    kept = slots >= 0
    for values, plane, scales in ((keys, kv.k, kv.k_scale), (x.v, kv.v, kv.v_scale)):
        stored = values
        if scales is not None:
            stored, scale = quantize_heads(values, plane.dtype)
            scatter(scales, scale[kept], slots[kept])
        scatter(plane.view(torch.uint8) if scales is not None else plane, _bits(stored, scales)[kept], slots[kept])
    return norm_rope(x.q, norms.q if norms else None, eps, turn)


def _bits(values: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    return values if scales is None else values.view(torch.uint8)


@triton.jit
def load_heads(
    p_x,
    p_norm,
    p_cos,
    p_sin,
    o_h,
    mask_h,
    eps,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NORM: tl.constexpr,
):
    """Return float32 heads [BLOCK_H, BLOCK_D] of one token, normed and rotated."""
    o_d = tl.arange(0, BLOCK_D)
    mask = mask_h[:, None] & (o_d < HEAD_DIM)[None, :]
    b_x = tl.load(p_x + o_h[:, None] * HEAD_DIM + o_d[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        b_inverse = tl.rsqrt(tl.sum(b_x * b_x, 1) / HEAD_DIM + eps)[:, None]
        b_x = b_x * b_inverse * tl.load(p_norm + o_d, mask=o_d < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
    if ROPE_DIM > 0:
        turned = o_d < ROPE_DIM
        first = o_d < ROPE_DIM // 2
        o_other = tl.where(first, o_d + ROPE_DIM // 2, o_d - ROPE_DIM // 2)
        o_other = tl.where(turned, o_other, o_d)
        b_other = tl.load(p_x + o_h[:, None] * HEAD_DIM + o_other[None, :], mask=mask, other=0.0).to(tl.float32)
        if NORM:
            b_weight = tl.load(p_norm + o_other, mask=o_d < HEAD_DIM, other=0.0).to(tl.float32)
            b_other = b_other * b_inverse * b_weight[None, :]
        b_cos = tl.load(p_cos + o_d, mask=turned, other=1.0)
        b_sin = tl.load(p_sin + o_d, mask=turned, other=0.0)
        b_x = b_x * b_cos[None, :] + b_other * tl.where(first, -b_sin, b_sin)[None, :]
    return b_x


@triton.jit
def store_heads(
    b_x, p_plane, p_scale, o_h, mask_h, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    LARGEST: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Store heads of one token at its slot; `p_plane` and `p_scale` point to the slot."""
    o_d = tl.arange(0, BLOCK_D)
    mask = mask_h[:, None] & (o_d < HEAD_DIM)[None, :]
    if LARGEST > 0:
        b_scale = tl.max(tl.abs(b_x), 1) / LARGEST
        b_x = b_x / tl.where(b_scale > 0, b_scale, 1.0)[:, None]
        if ROUND:
            b_x = tl.floor(b_x + 0.5)
        tl.store(p_scale + o_h, b_scale, mask=mask_h)
    tl.store(p_plane + o_h[:, None] * HEAD_DIM + o_d[None, :], b_x.to(p_plane.dtype.element_ty), mask=mask)


@triton.jit
def kv_write_kernel(
    p_q,
    p_k,
    p_v,
    p_out,
    p_k_plane,
    p_v_plane,
    p_k_scale,
    p_v_scale,
    p_slots,
    p_positions,
    p_cos,
    p_sin,
    p_q_norm,
    p_k_norm,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    slot_stride,
    table_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NORM: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Programs of a token: first those of its query heads, then those of its key and value heads."""
    Q_BLOCKS: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    i_token = tl.program_id(0).to(tl.int64)
    i_block = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    i_position = 0
    if ROPE_DIM > 0:
        i_position = tl.load(p_positions + i_token) * table_stride
    if i_block < Q_BLOCKS:
        o_h = i_block * BLOCK_H + tl.arange(0, BLOCK_H)
        b_q = load_heads(
            p_q + i_token * q_stride, p_q_norm, p_cos + i_position, p_sin + i_position, o_h, o_h < HEADS, eps,
            HEAD_DIM, BLOCK_D, ROPE_DIM, NORM,
        )  # fmt: skip
        mask = (o_h < HEADS)[:, None] & (o_d < HEAD_DIM)[None, :]
        o_out = i_token * out_stride + o_h[:, None] * HEAD_DIM + o_d[None, :]
        tl.store(p_out + o_out, b_q.to(p_out.dtype.element_ty), mask=mask)
    else:
        i_slot = tl.load(p_slots + i_token)
        if i_slot >= 0:
            o_h = (i_block - Q_BLOCKS) * BLOCK_H + tl.arange(0, BLOCK_H)
            mask_h = o_h < KV_HEADS
            b_k = load_heads(
                p_k + i_token * k_stride, p_k_norm, p_cos + i_position, p_sin + i_position, o_h, mask_h, eps,
                HEAD_DIM, BLOCK_D, ROPE_DIM, NORM,
            )  # fmt: skip
            # What attention reads back is the key in the model's type, as a float cache would hold it.
            b_k = b_k.to(p_k.dtype.element_ty).to(tl.float32)
            store_heads(
                b_k, p_k_plane + i_slot * slot_stride, p_k_scale + i_slot * KV_HEADS, o_h, mask_h,
                KV_HEADS, HEAD_DIM, BLOCK_D, LARGEST, ROUND,
            )  # fmt: skip
            mask = mask_h[:, None] & (o_d < HEAD_DIM)[None, :]
            o_v = i_token * v_stride + o_h[:, None] * HEAD_DIM + o_d[None, :]
            b_v = tl.load(p_v + o_v, mask=mask, other=0.0).to(tl.float32)
            store_heads(
                b_v, p_v_plane + i_slot * slot_stride, p_v_scale + i_slot * KV_HEADS, o_h, mask_h,
                KV_HEADS, HEAD_DIM, BLOCK_D, LARGEST, ROUND,
            )  # fmt: skip


def kv_write(
    x: Any,
    kv: KVCache,
    slots: torch.Tensor,
    positions: torch.Tensor,
    norms: HeadNorms | None,
    rope: RopeTables | None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Store k and v of `x` (a `Qkv` [T, heads, head_dim]) and return its queries [T, heads, head_dim].

    Heads of a token lie next to each other; tokens may be apart. `slots` [T] int64, `positions` [T] int64.
    """
    num_tokens, heads, width = x.q.shape
    kv_heads = x.k.shape[1]
    out = torch.empty(x.q.shape, dtype=x.q.dtype, device=x.q.device) if out is None else out
    if not num_tokens:
        return out
    block_h = min(BLOCK_H, triton.next_power_of_2(max(heads, kv_heads)))
    block_d = triton.next_power_of_2(width)
    # Unused pointers stand in for what is not asked for: a pointer may not be None where it is offset.
    scales = (kv.k_scale, kv.v_scale) if kv.k_scale is not None else (kv.k, kv.v)
    cos, sin = (rope.cos, rope.sin) if rope else (x.q, x.q)
    kv_write_kernel[(num_tokens, triton.cdiv(heads, block_h) + triton.cdiv(kv_heads, block_h))](
        x.q,
        x.k,
        x.v,
        out,
        kv.k,
        kv.v,
        *scales,
        slots,
        positions,
        cos,
        sin,
        norms.q if norms else x.q,
        norms.k if norms else x.q,
        x.q.stride(0),
        x.k.stride(0),
        x.v.stride(0),
        out.stride(0),
        kv.k.stride(1),
        rope.cos.stride(0) if rope else 0,
        norms.eps if norms else 0.0,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=width,
        BLOCK_D=block_d,
        BLOCK_H=block_h,
        ROPE_DIM=rope.cos.shape[1] if rope else 0,
        NORM=norms is not None,
        LARGEST=LARGEST.get(kv.k.dtype, 0.0) if kv.k_scale is not None else 0.0,
        ROUND=kv.k.dtype == torch.int8,
        num_warps=1 if block_h * block_d <= 512 else 4,
    )
    return out
