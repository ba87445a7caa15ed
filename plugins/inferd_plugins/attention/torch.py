"""Attention by torch's scaled_dot_product_attention over gathered blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from inferd.plugin.contracts import AttentionBackend
from inferd.plugin.types import Accept, Gqa, ProbeContext, Reject, Verdict
from inferd_plugins.attention.layout import beyond_plain_scores, layout_of, rejections
from inferd_plugins.attention.tiles import Long, Padded, Tile, cut

if TYPE_CHECKING:
    from inferd.plugin.contracts import Workspace
    from inferd.plugin.types import AttentionLayer, KVFormat, KVGroup, KVLayout, LayerKV, StepInputs


class TorchAttention(AttentionBackend):
    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        reasons = rejections(context) + beyond_plain_scores(context)
        return Reject(tuple(reasons)) if reasons else Accept()

    def kv_layout(self, group: KVGroup, format: KVFormat, block_size: int) -> KVLayout:
        return layout_of("torch", group, format, block_size)

    def plan(self, inputs: StepInputs, workspace: Workspace) -> StepPlan:
        return StepPlan(inputs)

    def attend(self, layer: AttentionLayer, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        assert isinstance(layer.spec, Gqa)
        calls = plan.calls(layer.group, layer.spec.window, kv["k"].shape[1])
        if len(calls) == 1 and calls[0].mask_of is None:
            return _padded(layer.spec, q, kv, calls[0])
        out = q.new_empty(q.shape)
        for call in calls:
            if call.mask_of is None:
                out[call.rows] = _padded(layer.spec, q[call.rows], kv, call)
            else:
                _long(layer.spec, q[call.rows], kv, call, call.mask_of, out[call.rows])
        return out


class Call(NamedTuple):
    """One attention call with its tensors, shared by all layers of a KV group."""

    rows: slice
    num_seqs: int
    slots: torch.Tensor
    """[num_seqs * keys] where the keys lie; padding repeats the sequence's own last key."""
    mask: torch.Tensor | None
    """[num_seqs, 1, query_len, keys] for a padded call that needs one."""
    mask_of: Long | None
    """Set for a long chunk, whose masks are made a tile at a time."""


@dataclass(slots=True)
class StepPlan:
    """The calls of one step, made on first use by each KV group."""

    inputs: StepInputs
    _calls: dict[tuple[int, int | None], list[Call]] = field(default_factory=dict)

    def calls(self, group: int, window: int | None, block_size: int) -> list[Call]:
        key = (group, window)
        if key not in self._calls:
            pieces = cut(self.inputs.query_lens, self.inputs.context_lens_host, window)
            tables = self.inputs.block_tables[group]
            self._calls[key] = [_call(piece, tables, window, block_size) for piece in pieces]
        return self._calls[key]


def _call(piece: Padded | Long, tables: torch.Tensor, window: int | None, block_size: int) -> Call:
    if isinstance(piece, Long):
        positions = torch.arange(piece.low, piece.context, device=tables.device).unsqueeze(0)
        slots = _slots(tables[piece.first : piece.first + 1], positions, block_size)
        return Call(slice(piece.start_row, piece.start_row + piece.query_len), 1, slots, None, piece)
    count = len(piece.contexts)
    ends = torch.tensor(piece.contexts, device=tables.device).unsqueeze(1)  # [b, 1]
    lows = torch.tensor(piece.lows, device=tables.device).unsqueeze(1)
    positions = lows + torch.arange(piece.width, device=tables.device)  # [b, keys]
    slots = _slots(tables[piece.first : piece.first + count], positions.clamp(max=ends - 1), block_size)
    rows = slice(piece.start_row, piece.start_row + count * piece.query_len)
    if piece.query_len == 1 and len({c - low for c, low in zip(piece.contexts, piece.lows, strict=True)}) == 1:
        return Call(rows, count, slots, None, None)
    queries = ends - piece.query_len + torch.arange(piece.query_len, device=tables.device)  # [b, t]
    mask = _visible(queries.unsqueeze(2), positions.unsqueeze(1), window)
    return Call(rows, count, slots, mask.unsqueeze(1), None)


def _slots(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the cache slots of positions [b, keys], flat."""
    blocks = tables.long().gather(1, positions // block_size)
    return (blocks * block_size + positions % block_size).flatten()


def _visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    mask = keys <= queries
    return mask if window is None else mask & (keys > queries - window)


def _gather(plane: torch.Tensor, call: Call, dtype: torch.dtype) -> torch.Tensor:
    """Return [num_seqs, kv_heads, keys, width] of one plane; only slots the sequences own are read."""
    flat = plane.view(-1, *plane.shape[2:]).index_select(0, call.slots)
    return flat.view(call.num_seqs, -1, *plane.shape[2:]).transpose(1, 2).to(dtype)


def _padded(spec: Gqa, q: torch.Tensor, kv: LayerKV, call: Call) -> torch.Tensor:
    queries = q.view(call.num_seqs, -1, *q.shape[1:]).transpose(1, 2)  # [b, heads, t, width]
    out = F.scaled_dot_product_attention(
        queries,
        _gather(kv["k"], call, q.dtype),
        _gather(kv["v"], call, q.dtype),
        attn_mask=call.mask,
        scale=spec.scale,
        enable_gqa=spec.heads != spec.kv_heads,
    )
    return out.transpose(1, 2).reshape(q.shape)


def _long(spec: Gqa, q: torch.Tensor, kv: LayerKV, call: Call, chunk: Long, out: torch.Tensor) -> None:
    """Attend over one chunk, writing into `out` [t, heads, width]."""
    k, v = _gather(kv["k"], call, q.dtype), _gather(kv["v"], call, q.dtype)
    queries = q.transpose(0, 1).unsqueeze(0)  # [1, heads, t, width]
    gqa = spec.heads != spec.kv_heads
    if chunk.whole and spec.window is None:
        result = F.scaled_dot_product_attention(queries, k, v, is_causal=True, scale=spec.scale, enable_gqa=gqa)
        out.copy_(result[0].transpose(0, 1))
        return
    for tile in chunk.tiles(spec.window):
        keys = slice(tile.first_key, tile.end_key)
        result = F.scaled_dot_product_attention(
            queries[:, :, tile.first_row : tile.end_row],
            k[:, :, keys],
            v[:, :, keys],
            attn_mask=_tile_mask(chunk, tile, spec.window, q.device),
            scale=spec.scale,
            enable_gqa=gqa,
        )
        out[tile.first_row : tile.end_row] = result[0].transpose(0, 1)


def _tile_mask(chunk: Long, tile: Tile, window: int | None, device: torch.device) -> torch.Tensor:
    before = chunk.context - chunk.query_len
    queries = torch.arange(before + tile.first_row, before + tile.end_row, device=device)
    keys = torch.arange(chunk.low + tile.first_key, chunk.low + tile.end_key, device=device)
    return _visible(queries.unsqueeze(1), keys, window)
