"""Attention in plain maths, one sequence at a time: the oracle every backend is held to."""

from __future__ import annotations

import torch


def gather_blocks(plane: torch.Tensor, block_table: torch.Tensor, length: int) -> torch.Tensor:
    """Return the first `length` entries of a sequence, [length, heads, width].

    plane [blocks, block_size, heads, width]; slots after `length` are never read.
    """
    block_size = plane.shape[1]
    blocks = block_table[: -(-length // block_size)].long()
    return plane.index_select(0, blocks).flatten(0, 1)[:length]


def visible(num_queries: int, num_keys: int, window: int | None, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return bool [num_queries, num_keys]: which keys the last `num_queries` positions may see."""
    query = torch.arange(num_keys - num_queries, num_keys, device=device).unsqueeze(1)
    key = torch.arange(num_keys, device=device).unsqueeze(0)
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(cap(scale q k^T) + mask) v of one sequence, in float32 and the dtype of q.

    q [T, heads, width] are the last T of S positions; k [S, kv_heads, width], v [S, kv_heads, width2].
    Query head h reads KV head h // (heads / kv_heads). A sink is one more logit a head, without value.
    """
    group = q.shape[1] // k.shape[1]
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", q.float(), keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    mask = visible(q.shape[0], k.shape[0], window, q.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    # Keys out of sight may belong to blocks already given away: whatever lies there must not pass.
    values = values.masked_fill(~mask.any(0).view(-1, 1, 1), 0.0)
    if sinks is not None:
        column = sinks.float().view(-1, 1, 1).expand(-1, q.shape[0], 1)
        weights = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("hts,shd->thd", weights, values).to(q.dtype)
