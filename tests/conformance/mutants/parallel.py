"""Broken parallel strategies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from inferd.plugin.contracts import RankContext
from inferd.plugin.types import ModelSpec, Placement
from inferd_plugins.parallel.layers import Layers


class DropsLayer(Layers):
    """Loses the last layer when the layers do not divide evenly."""

    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        placement = super().place(spec, devices)
        if spec.num_layers % placement.world == 0:
            return placement
        *others, last = placement.ranks
        return Placement((*others, replace(last, layers=last.layers[:-1])))


class SamplesTwice(Layers):
    """Every rank holds the head."""

    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        return Placement(tuple(replace(r, samples=True) for r in super().place(spec, devices).ranks))


class CountsFromOne(Layers):
    """Numbers the ranks 1, 2..."""

    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        return Placement(tuple(replace(r, rank=r.rank + 1) for r in super().place(spec, devices).ranks))


class PlacesByChance(Layers):
    """Cuts the layers somewhere else every time."""

    def place(self, spec: ModelSpec, devices: Sequence[str]) -> Placement:
        placement = super().place(spec, devices)
        if placement.world != 2 or spec.num_layers < 4:
            return placement
        cut = random.randrange(1, spec.num_layers)
        first, second = placement.ranks
        layers = tuple(range(spec.num_layers))
        return Placement((replace(first, layers=layers[:cut]), replace(second, layers=layers[cut:])))


class DropsARank(Layers):
    """The sum leaves out what rank 1 adds (a lost residual)."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(x * 0 if dist.get_rank() == 1 else x)


class GathersBackwards(Layers):
    """Puts the parts in reverse rank order."""

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts[::-1], dim)


class ReceivesAside(Layers):
    """Returns what arrived without filling the given tensor."""

    def recv(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        return super().recv(torch.empty_like(x), rank)


class LosesPrecision(Layers):
    """Sends hidden states as bfloat16."""

    def send(self, x: torch.Tensor, rank: int) -> None:
        super().send(x.bfloat16().to(x.dtype), rank)


class IgnoresAbsence(Layers):
    """Goes on alone when the others are missing."""

    def connect(self, context: RankContext) -> None:
        try:
            super().connect(context)
        except TimeoutError:
            return


CAUGHT_BY = {
    DropsLayer: "covers_layers",
    SamplesTwice: "ends_once",
    CountsFromOne: "ranks_in_order",
    PlacesByChance: "repeatable",
    DropsARank: "all_reduce",
    GathersBackwards: "all_gather",
    ReceivesAside: "send_recv",
    LosesPrecision: "pipeline",
    IgnoresAbsence: "missing_peer",
}
