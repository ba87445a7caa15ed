"""Pipeline of layers over CPU processes: each rank holds a run of layers and hands on the hidden state.

Collectives are those of torch.distributed over gloo. Each token passes the ranks one after the
other, so nothing gets faster: the model may be larger than one process can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from inferd.plugin.contracts import ParallelStrategy, RankContext
from inferd.plugin.types import Accept, ModelSpec, Placement, ProbeContext, RankPlacement, Reject, Verdict
from inferd_plugins.parallel.options import LayersOptions

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Layers(ParallelStrategy):
    options: LayersOptions

    def __init__(self, options: LayersOptions | None = None) -> None:
        super().__init__(options or LayersOptions())
        self._group: ProcessGroup | None = None

    @classmethod
    def probe(cls, context: ProbeContext) -> Verdict:
        wanted = context.options.get("ranks", LayersOptions().ranks)
        if context.spec and isinstance(wanted, int) and wanted > context.spec.num_layers:
            return Reject((f"{wanted} ranks but {context.spec.num_layers} layers",))
        if not dist.is_available() or not dist.is_gloo_available():
            return Reject(("this torch has no gloo",))
        return Accept()

    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        """Cut the layers into runs whose lengths differ by at most one.

        One device is shared by all ranks; several must be as many as ranks.
        """
        world = self.options.ranks if len(devices) == 1 else len(devices)
        if not devices or world > spec.num_layers:
            raise ValueError(f"cannot place {spec.num_layers} layers on {world} ranks")
        cuts = [rank * spec.num_layers // world for rank in range(world + 1)]
        return Placement(tuple(self._rank(rank, cuts, devices) for rank in range(world)))

    def _rank(self, rank: int, cuts: list[int], devices: Sequence[str]) -> RankPlacement:
        last = len(cuts) - 2
        return RankPlacement(
            rank=rank,
            device=devices[rank % len(devices)],
            layers=tuple(range(cuts[rank], cuts[rank + 1])),
            embeds=rank == 0,
            samples=rank == last,
        )

    def connect(self, context: RankContext) -> None:
        timeout = timedelta(seconds=context.timeout_s)
        try:
            dist.init_process_group(
                "gloo", init_method=context.rendezvous, rank=context.rank, world_size=context.world, timeout=timeout
            )
        except (dist.DistError, RuntimeError) as error:
            raise TimeoutError(
                f"rank {context.rank} of {context.world} met no peer within {context.timeout_s} s: {error}"
            ) from error
        self._group = dist.group.WORLD

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=self._group)
        return total

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat(parts, dim)

    def send(self, x: torch.Tensor, rank: int) -> None:
        dist.send(x.contiguous(), rank, group=self._group)

    def recv(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        buffer: Any = x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.recv(buffer, rank, group=self._group)
        return x if buffer is x else x.copy_(buffer)

    def close(self) -> None:
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
