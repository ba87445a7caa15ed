"""One rank: the whole model on one device, collectives that return their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferd.plugin.contracts import ParallelStrategy, RankContext
from inferd.plugin.types import ModelSpec, Placement, RankPlacement

if TYPE_CHECKING:
    import torch


class Single(ParallelStrategy):
    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        if not devices:
            raise ValueError("no device to place the model on")
        layers = tuple(range(spec.num_layers))
        return Placement((RankPlacement(rank=0, device=devices[0], layers=layers, embeds=True, samples=True),))

    def connect(self, context: RankContext) -> None:
        if context.world != 1:
            raise ValueError(f"strategy `single` has one rank, not {context.world}")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x

    def send(self, x: torch.Tensor, rank: int) -> None:
        raise ValueError(f"strategy `single` has no rank {rank} to send to")

    def recv(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        raise ValueError(f"strategy `single` has no rank {rank} to receive from")
