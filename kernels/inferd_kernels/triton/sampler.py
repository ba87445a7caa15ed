"""Choose a token for each row of logits: Gumbel-max over what min-p, top-k and top-p leave, without sorting.

    x = logits / temperature
    min-p: x >= max x + log min_p;  top-k: x >= the k-th highest, ties kept
    top-p: the fewest of the most likely tokens whose probability among those left reaches p, low ids first
    token = argmax x + g,  g = -log(-log u(seed, position, token)), lowest id first

Noise and definitions are those of `inferd.engine.sampler`. Thresholds are searched (see `threshold`), rows that ask
for no filter skip that, and nothing is read back: the whole choice can be part of a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.triton.threshold import key_of, search, value_of

BLOCK = 2048


class RowParams(NamedTuple):
    """Parameters of each row, on the device."""

    temperature: torch.Tensor  # [R] float32; 0 = greedy
    top_k: torch.Tensor  # [R] int32; 0 = all
    top_p: torch.Tensor  # [R] float32; 1 = all
    log_min_p: torch.Tensor  # [R] float32; -inf = all
    keys: torch.Tensor  # [R, 2] int32: the noise of (seed, position)


def noise_reference(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return float32 Gumbel noise [R, vocab] of keys int32 [R, 2]."""

    def mix(x: torch.Tensor) -> torch.Tensor:
        x = (x ^ ((x >> 16) & 0xFFFF)) * (0x85EBCA6B - (1 << 32))
        x = (x ^ ((x >> 13) & 0x7FFFF)) * (0xC2B2AE35 - (1 << 32))
        return x ^ ((x >> 16) & 0xFFFF)

    tokens = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    mixed = mix(mix((tokens * (0x9E3779B1 - (1 << 32))) ^ keys[:, :1]) + keys[:, 1:])
    uniform = ((mixed & 0x7FFFFFFF).float() + 0.5).mul(2.0**-31).clamp(max=1.0 - 2.0**-24)
    return -torch.log(-torch.log1p(-uniform))


def kept_reference(x: torch.Tensor, top_k: int, top_p: float, log_min_p: float) -> torch.Tensor:
    """Return which of the scaled logits x [vocab] stay, by sorting."""
    kept = x >= x.max() + log_min_p
    x = x.masked_fill(~kept, float("-inf"))
    if top_k > 0:
        x = x.masked_fill(x < x.topk(min(top_k, len(x))).values[-1], float("-inf"))
    if top_p < 1:
        probs, order = x.double().softmax(-1).sort(descending=True, stable=True)
        count = int((probs.cumsum(-1) < top_p).sum()) + 1
        x = x.masked_fill(torch.ones_like(kept).index_fill(0, order[:count], False), float("-inf"))
    return x > float("-inf")


def sample_reference(logits: torch.Tensor, params: RowParams) -> torch.Tensor:
    """Return the token of each row [R] int64."""
    noise, ids = noise_reference(params.keys, logits.shape[1]), logits.argmax(-1)
    for row in range(len(logits)):
        if params.temperature[row] > 0:
            x = logits[row] / params.temperature[row]
            kept = kept_reference(x, int(params.top_k[row]), float(params.top_p[row]), float(params.log_min_p[row]))
            ids[row] = (x.masked_fill(~kept, float("-inf")) + noise[row]).argmax()
    return ids


@triton.jit
def mix32(b_x):
    """The finaliser of 32-bit murmur3, on int32."""
    b_x = (b_x ^ ((b_x >> 16) & 0xFFFF)) * -2048144789
    b_x = (b_x ^ ((b_x >> 13) & 0x7FFFF)) * -1028477387
    return b_x ^ ((b_x >> 16) & 0xFFFF)


@triton.jit
def gumbel(i_key, i_salt, o_tokens):
    """Return the noise of tokens in a row with keys (i_key, i_salt)."""
    b_mixed = mix32(mix32((o_tokens * -1640531535) ^ i_key) + i_salt)
    b_u = ((b_mixed & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10
    b_u = tl.minimum(b_u, 0.9999999403953552)
    # log1p(-u), exact near 0: log(w) u / (1 - w) with w = 1 - u as rounded (Higham 2002, section 1.14.1).
    b_w = 1.0 - b_u
    b_log = tl.where(b_w == 1.0, b_u, -tl.log(b_w) * (b_u / tl.where(b_w == 1.0, 1.0, 1.0 - b_w)))
    return -tl.log(b_log)


@triton.jit
def sample_kernel(
    p_logits,
    p_temperature,
    p_top_k,
    p_top_p,
    p_log_min_p,
    p_keys,
    p_ids,
    p_peaks,
    logits_stride,
    num_columns,
    BLOCK: tl.constexpr,
):
    """One program a row. A peak of NaN marks a row with a NaN in it."""
    i_row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + i_row * logits_stride
    temperature = tl.load(p_temperature + i_row)
    b_top = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    b_bad = tl.zeros([BLOCK], dtype=tl.int32)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = tl.load(p_row + o_v, mask=o_v < num_columns, other=float("-inf"))
        b_bad += (b_x != b_x).to(tl.int32)
        b_top = tl.maximum(b_top, b_x)
    peak = tl.max(b_top, 0)
    bad = tl.sum(b_bad, 0) > 0
    tl.store(p_peaks + i_row, tl.where(bad, float("nan"), peak))

    # A row of no finite logit is not worth a search; its peak says so.
    sound = (peak > float("-inf")) & (peak < float("inf")) & (bad == 0)
    greedy = (temperature <= 0.0) | (sound == 0)
    scale = tl.where(greedy, 1.0, 1.0 / tl.where(greedy, 1.0, temperature))
    top = peak * scale
    i_top = key_of(top)
    i_floor = key_of(tl.full([], float("-inf"), dtype=tl.float32))
    i_last = i_floor
    num_tied = tl.full([], num_columns, dtype=tl.float32)
    if greedy == 0:
        log_min_p = tl.load(p_log_min_p + i_row)
        if log_min_p > float("-inf"):
            i_floor = tl.minimum(key_of(top + log_min_p), i_top)
        top_k = tl.load(p_top_k + i_row)
        if (top_k > 0) & (top_k < num_columns):
            i_floor = search(p_row, num_columns, i_floor, i_top, top_k.to(tl.float32), scale, top, False, BLOCK)
        i_last = i_floor
        top_p = tl.load(p_top_p + i_row)
        if top_p < 1.0:
            total = weigh_all(p_row, num_columns, i_floor, scale, top, BLOCK)
            i_last = search(p_row, num_columns, i_floor, i_top, top_p * total, scale, top, True, BLOCK)
            above = weigh_all(p_row, num_columns, i_last + 1, scale, top, BLOCK)
            each = tl.exp(value_of(i_last) - top)
            num_tied = tl.maximum(tl.ceil((top_p * total - above) / each), 1.0)

    best = tl.full([], float("-inf"), dtype=tl.float32)
    i_best = tl.full([], 0, dtype=tl.int32)
    tied_before = tl.full([], 0.0, dtype=tl.float32)
    i_key = tl.load(p_keys + i_row * 2)
    i_salt = tl.load(p_keys + i_row * 2 + 1)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = tl.load(p_row + o_v, mask=o_v < num_columns, other=float("-inf")) * scale
        if greedy == 0:
            b_key = key_of(b_x)
            b_tied = tl.where((b_key == i_last) & (o_v < num_columns), 1.0, 0.0)
            b_rank = tied_before + tl.cumsum(b_tied, 0)
            kept = (b_key > i_last) | ((b_tied > 0.0) & (b_rank <= num_tied))
            tied_before += tl.sum(b_tied, 0)
            b_x = tl.where(kept, b_x + gumbel(i_key, i_salt, o_v), float("-inf"))
        i_here = tl.argmax(b_x, 0).to(tl.int32)
        here = tl.max(b_x, 0)
        i_best = tl.where(here > best, i_first + i_here, i_best)
        best = tl.maximum(best, here)
    tl.store(p_ids + i_row, i_best.to(tl.int64))


@triton.jit
def weigh_all(p_row, num_columns, i_floor, scale, top, BLOCK: tl.constexpr):
    """Return the mass, relative to the top, of all values with keys of at least `i_floor`."""
    b_mass = tl.zeros([BLOCK], dtype=tl.float32)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = tl.load(p_row + o_v, mask=o_v < num_columns, other=float("-inf")) * scale
        b_mass += tl.where((key_of(b_x) >= i_floor) & (o_v < num_columns), tl.exp(b_x - top), 0.0)
    return tl.sum(b_mass, 0)


def sample(logits: torch.Tensor, params: RowParams, *, block: int = BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens [R] int64 of float32 logits [R, vocab], and each row's largest logit [R] (NaN: one is NaN)."""
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        sample_kernel[(rows,)](
            logits,
            *params,
            ids,
            peaks,
            logits.stride(0),
            vocab,
            BLOCK=min(block, triton.next_power_of_2(vocab)),
            num_warps=16,
        )
    return ids, peaks
