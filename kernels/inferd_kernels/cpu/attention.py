"""Launch the cache write and the paged attention of `src/kv_write.h` and `src/attention.h`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from inferd_kernels.cpu.program import RowCount, empty, launch
from inferd_kernels.cpu.structs import KV_NUMBERS, AttendArgs, WriteArgs, address_of

if TYPE_CHECKING:
    from collections.abc import Mapping

SPAN = 256
SHORT_ROWS = 64
MAX_GROUP = 64
"""Most query heads of one KV head."""
MAX_WIDTH = 256
PARTIAL_BYTES = 32 << 20
"""Most memory for partial results of split sequences; what does not fit is scanned by one thread."""


def write(layer: Any, x: Any, kv: Mapping[str, torch.Tensor], inputs: Any) -> torch.Tensor:
    """Norm and rotate q and k [T, heads, width], store k (transposed within its block) and v; return q."""
    spec = layer.spec
    rows = x.q.shape[0]
    q, k, v = (part if part.stride(-1) == 1 and part.stride(1) == spec.head_dim else part.contiguous() for part in x)
    out = empty((rows, spec.heads, spec.head_dim))
    slots, positions = inputs.slots[layer.group].contiguous(), inputs.positions
    count = RowCount(rows)
    args = WriteArgs(
        rows=count.address,
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        q_stride=q.stride(0),
        k_stride=k.stride(0),
        v_stride=v.stride(0),
        positions=positions.data_ptr(),
        slots=slots.data_ptr(),
        cos=address_of(layer.cos),
        sin=address_of(layer.sin),
        q_norm=address_of(layer.q_norm),
        k_norm=address_of(layer.k_norm),
        q_out=out.data_ptr(),
        k_cache=kv["k_columns"].data_ptr(),
        v_cache=kv["v_rows"].data_ptr(),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        width=spec.head_dim,
        rope=0 if layer.cos is None else layer.cos.shape[1],
        block_size=kv["v_rows"].shape[1],
        number=KV_NUMBERS[kv["v_rows"].dtype],
        eps=layer.norm_eps,
        k_scales=address_of(kv.get("k_columns_scale")),
        v_scales=address_of(kv.get("v_rows_scale")),
        **_strides(kv),
    )
    launch("write", args, layer, kv, positions, slots)
    return out


@dataclass(slots=True)
class AttentionPlan:
    """What the layers of one step share: how its work falls into pieces, by (group, window, heads)."""

    inputs: Any
    _cuts: dict[tuple[int, ...], AttendArgs] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)

    def attend(self, layer: Any, q: torch.Tensor, kv: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return softmax(scale q k^T + mask) v, [T, heads, width]."""
        out = empty(tuple(q.shape))
        args = self._cut(layer, kv)
        args.q, args.out = q.data_ptr(), out.data_ptr()
        args.k_cache, args.v_cache = kv["k_columns"].data_ptr(), kv["v_rows"].data_ptr()
        args.k_scales, args.v_scales = address_of(kv.get("k_columns_scale")), address_of(kv.get("v_rows_scale"))
        args.scale = layer.spec.scale
        launch("attend", args, kv, self)
        return out

    def _cut(self, layer: Any, kv: Mapping[str, torch.Tensor]) -> AttendArgs:
        """Return a copy of the arguments that all layers of this kind share, with its pieces planned."""
        spec = layer.spec
        key = (layer.group, spec.window or 0, spec.heads, spec.kv_heads, spec.head_dim)
        if key not in self._cuts:
            args = self._cuts[key] = self._new(layer, kv)
            launch("plan", args, self)
        return AttendArgs.from_buffer_copy(self._cuts[key])

    def _new(self, layer: Any, kv: Mapping[str, torch.Tensor]) -> AttendArgs:
        spec, inputs = layer.spec, self.inputs
        sequences = inputs.context_lens.shape[0]
        tables = inputs.block_tables[layer.group]
        padded = -(-spec.head_dim // 32) * 32
        record = SHORT_ROWS * (padded + 16)
        keys = tables.shape[1] * kv["v_rows"].shape[1]
        tasks = min(-(-keys // SPAN) * sequences * spec.kv_heads, PARTIAL_BYTES // (4 * record))
        partial = torch.empty(tasks * record) if keys > SPAN else torch.empty(0)
        pending = torch.zeros(sequences * spec.kv_heads, dtype=torch.int32)
        bases = torch.zeros(2 * sequences + 2, dtype=torch.int32)
        count = RowCount(sequences, "sequences")
        self._kept += [tables, partial, pending, bases, count]
        return AttendArgs(
            sequences=count.address,
            cu_seqlens=inputs.cu_seqlens.data_ptr(),
            context_lens=inputs.context_lens.data_ptr(),
            block_tables=tables.data_ptr(),
            table_stride=tables.stride(0),
            partial=partial.data_ptr(),
            pending=pending.data_ptr(),
            partial_tasks=tasks if keys > SPAN else 0,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            width=spec.head_dim,
            block_size=kv["v_rows"].shape[1],
            number=KV_NUMBERS[kv["v_rows"].dtype],
            window=spec.window or 0,
            task_base=bases.data_ptr(),
            **_strides(kv),
        )


def _strides(kv: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return how far apart blocks lie, which keys and values share; each block of a plane is in one piece."""
    strides = {name: plane.stride(0) for name, plane in kv.items()}
    assert strides["k_columns"] == strides["v_rows"], strides
    return {"block_stride": strides["v_rows"], "scale_stride": strides.get("v_rows_scale", 0)}
