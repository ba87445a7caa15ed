"""Choose a token for each row of logits: Gumbel-max over what min-p, top-k and top-p leave, without sorting.

    x = logits / temperature
    min-p: x >= max x + log min_p;  top-k: x >= the k-th highest, ties kept
    top-p: the fewest of the most likely tokens whose probability among those left reaches p, low ids first
    token = argmax x + g,  g = -ln(-ln(1 - u(seed, position, token))), lowest id first

Filters and noise are those of `inferd_kernels.reference`, bit for bit, so tokens do not depend on who chooses them.
Thresholds are searched (see `threshold`), rows that ask for no filter skip that, and nothing is read back: the whole
choice can be part of a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from inferd_kernels.reference.filters import apply_min_p, apply_top_k, apply_top_p
from inferd_kernels.reference.noise import gumbel as gumbel_reference
from inferd_kernels.triton.noise import FUSION_OFF, fixed_weight, gumbel
from inferd_kernels.triton.threshold import key_of, mass_from, scaled, search, value_of

BLOCK = 2048


class RowParams(NamedTuple):
    """Parameters of each row, on the device."""

    temperature: torch.Tensor  # [R] float32; 0 = greedy
    top_k: torch.Tensor  # [R] int32; 0 = all
    top_p: torch.Tensor  # [R] float32; 1 = all
    log_min_p: torch.Tensor  # [R] float32; -inf = all
    keys: torch.Tensor  # [R, 2] int32: the noise of (seed, position)


def sample_reference(logits: torch.Tensor, params: RowParams) -> torch.Tensor:
    """Return the token of each row [R] int64."""
    warm = params.temperature > 0
    x = logits / params.temperature.where(warm, 1.0).unsqueeze(1)
    apply_min_p(x, params.log_min_p)
    apply_top_k(x, params.top_k)
    apply_top_p(x, params.top_p)
    x += gumbel_reference(params.keys, torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device))
    return x.argmax(-1).where(warm, logits.argmax(-1))


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
    temperature = tl.where(greedy, 1.0, temperature)
    top = tl.div_rn(peak, temperature) + 0.0
    i_top = key_of(top)
    i_floor = key_of(tl.full([], float("-inf"), dtype=tl.float32))
    i_last = i_floor
    num_tied = tl.full([], num_columns, dtype=tl.int64)
    if greedy == 0:
        log_min_p = tl.load(p_log_min_p + i_row)
        if log_min_p > float("-inf"):
            i_floor = tl.minimum(key_of((top + log_min_p) + 0.0), i_top)
        top_k = tl.load(p_top_k + i_row)
        if (top_k > 0) & (top_k < num_columns):
            i_floor = search(p_row, num_columns, i_floor, i_top, top_k.to(tl.int64), temperature, top, False, BLOCK)
        i_last = i_floor
        top_p = tl.load(p_top_p + i_row)
        if top_p < 1.0:
            mass = mass_from(p_row, num_columns, i_floor, i_floor, temperature, top, BLOCK)
            wanted = (top_p.to(tl.float64) * mass.to(tl.float64)).to(tl.int64)
            i_last = search(p_row, num_columns, i_floor, i_top, wanted, temperature, top, True, BLOCK)
            above = mass_from(p_row, num_columns, i_last + 1, i_floor, temperature, top, BLOCK)
            each = tl.maximum(fixed_weight(value_of(i_last), top), 1)
            num_tied = tl.maximum((wanted - above + each - 1) // each, 1)

    best = tl.full([], float("-inf"), dtype=tl.float32)
    i_best = tl.full([], 0, dtype=tl.int32)
    tied_before = tl.full([], 0, dtype=tl.int32)
    i_key = tl.load(p_keys + i_row * 2)
    i_salt = tl.load(p_keys + i_row * 2 + 1)
    for i_first in range(0, num_columns, BLOCK):
        o_v = i_first + tl.arange(0, BLOCK)
        b_x = scaled(p_row, o_v, num_columns, temperature)
        if greedy == 0:
            b_key = key_of(b_x)
            b_tied = ((b_key == i_last) & (o_v < num_columns)).to(tl.int32)
            b_rank = tied_before + tl.cumsum(b_tied, 0)
            kept = (b_key > i_last) | ((b_tied > 0) & (b_rank <= num_tied))
            tied_before += tl.sum(b_tied, 0)
            b_x = tl.where(kept, b_x + gumbel(i_key, i_salt, o_v), float("-inf"))
        i_here = tl.argmax(b_x, 0).to(tl.int32)
        here = tl.max(b_x, 0)
        i_best = tl.where(here > best, i_first + i_here, i_best)
        best = tl.maximum(best, here)
    tl.store(p_ids + i_row, i_best.to(tl.int64))


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
            **FUSION_OFF,
        )
    return ids, peaks
