"""Checks of parallel strategies: placements, and collectives between real processes."""

from __future__ import annotations

import time
from collections import Counter

import torch

from inferd.plugin.conformance.ranks import run_ranks
from inferd.plugin.conformance.report import Check, NonconformanceError, SkipCheckError, Subject, require
from inferd.plugin.contracts import ParallelStrategy, RankContext
from inferd.plugin.types import DenseMlp, Gqa, LayerSpec, ModelSpec, Placement, RankPlacement, RopeSpec


def _model(layers: int) -> ModelSpec:
    layer = LayerSpec(Gqa(heads=4, kv_heads=2, head_dim=8, scale=8**-0.5), DenseMlp(inner=64))
    return ModelSpec(
        architecture="llama",
        vocab_size=64,
        hidden_size=32,
        layers=(layer,) * layers,
        ropes={"main": RopeSpec(theta=1e4, dim=8)},
        norm_eps=1e-6,
        trained_context=64,
        tied_embeddings=False,
    )


def _placements(subject: Subject) -> list[tuple[int, list[str], Placement]]:
    """Place models of 1 to 9 layers on 1 to 3 devices; too few layers may be refused by ValueError."""
    found: list[tuple[int, list[str], Placement]] = []
    for layers in (1, 2, 3, 5, 8, 9):
        for count in (1, 2, 3):
            devices = [subject.device] * count
            try:
                found.append((layers, devices, subject.make().place(_model(layers), devices)))
            except ValueError as error:
                require(layers < 8, f"{layers} layers on {count} devices were refused: {error}")
    return found


def covers_layers(subject: Subject) -> None:
    """Every layer is on exactly one rank (of each shard); runs follow each other in rank order."""
    for layers, devices, placement in _placements(subject):
        where = f"{layers} layers on {len(devices)} devices"
        for shard in range(placement.ranks[0].shards):
            held = [layer for r in placement.ranks if r.shard == shard for layer in r.layers]
            require(held == list(range(layers)), f"{where}: shard {shard} holds layers {held}")
        require(all(r.layers for r in placement.ranks), f"{where}: a rank holds no layer")


def ends_once(subject: Subject) -> None:
    """One rank (of each shard) embeds, the one with the first layer; one samples, the one with the last."""
    for layers, devices, placement in _placements(subject):
        where = f"{layers} layers on {len(devices)} devices"
        shards = placement.ranks[0].shards
        for name, layer in (("embeds", 0), ("samples", layers - 1)):
            ranks = [r for r in placement.ranks if getattr(r, name)]
            require(len(ranks) == shards, f"{where}: {len(ranks)} ranks have {name} set, for {shards} shards")
            require(all(layer in r.layers for r in ranks), f"{where}: {name} is not where layer {layer} is")


def ranks_in_order(subject: Subject) -> None:
    """Ranks are numbered 0, 1, 2...; each is on a device that was offered; shards are all there."""
    for layers, devices, placement in _placements(subject):
        where = f"{layers} layers on {len(devices)} devices"
        numbers = [r.rank for r in placement.ranks]
        require(numbers == list(range(placement.world)), f"{where}: ranks are numbered {numbers}")
        require(all(r.device in devices for r in placement.ranks), f"{where}: a rank is on a device not offered")
        _check_shards(where, placement.ranks)


def _check_shards(where: str, ranks: tuple[RankPlacement, ...]) -> None:
    require(len({r.shards for r in ranks}) == 1, f"{where}: ranks disagree on the number of shards")
    counts = Counter(r.shard for r in ranks)
    right = sorted(counts) == list(range(ranks[0].shards)) and len(set(counts.values())) == 1
    require(right, f"{where}: shards {sorted(counts.elements())} of {ranks[0].shards}")


def repeatable(subject: Subject) -> None:
    """Parent and ranks place alike: the same model and devices give the same placement."""
    first, second = _placements(subject), _placements(subject)
    require(first == second, "two placements of one model differ")


def _world(subject: Subject) -> int:
    """Return the smallest world over 1 that the strategy makes of two devices."""
    world = subject.make().place(_model(8), [subject.device] * 2).world
    if world == 1:
        raise SkipCheckError("has one rank only")
    return world


def alone(subject: Subject) -> None:
    """With one rank, collectives return their input."""
    if subject.make().place(_model(8), [subject.device]).world != 1:
        raise SkipCheckError("has several ranks on one device")
    run_ranks(subject, 1, _alone)


def _alone(strategy: ParallelStrategy, context: RankContext) -> None:
    strategy.connect(context)
    x = _values(0, (3, 4))
    require(torch.equal(strategy.all_reduce(x.clone()), x), "all_reduce of one rank changes its input")
    for dim in (0, 1, -1):
        require(torch.equal(strategy.all_gather(x.clone(), dim), x), "all_gather of one rank changes its input")
    strategy.close()
    strategy.close()


def all_reduce(subject: Subject) -> None:
    """Every rank gets the sum over all ranks, for any shape and dtype, contiguous or not."""
    run_ranks(subject, _world(subject), _all_reduce)


def _all_reduce(strategy: ParallelStrategy, context: RankContext) -> None:
    strategy.connect(context)
    for shape in ((1,), (3, 4), (2, 3, 5)):
        want = torch.stack([_values(rank, shape) for rank in range(context.world)]).sum(0)
        got = strategy.all_reduce(_values(context.rank, shape))
        require(torch.allclose(got, want), f"all_reduce of shape {shape} is not the sum over ranks")
    want = torch.stack([_values(rank, (4, 3)).T for rank in range(context.world)]).sum(0)
    got = strategy.all_reduce(_values(context.rank, (4, 3)).T)
    require(torch.allclose(got, want), "all_reduce of a transposed tensor is not the sum over ranks")
    strategy.close()


def all_gather(subject: Subject) -> None:
    """Every rank gets the parts of all ranks, in rank order, along the asked dimension."""
    run_ranks(subject, _world(subject), _all_gather)


def _all_gather(strategy: ParallelStrategy, context: RankContext) -> None:
    strategy.connect(context)
    for dim in (0, 1, 2, -1):
        want = torch.cat([_values(rank, (2, 3, 4)) for rank in range(context.world)], dim)
        got = strategy.all_gather(_values(context.rank, (2, 3, 4)), dim)
        require(got.shape == want.shape, f"all_gather along {dim}: shape {tuple(got.shape)}")
        require(torch.equal(got, want), f"all_gather along {dim}: parts are not in rank order")
    strategy.close()


def send_recv(subject: Subject) -> None:
    """What one rank sends the other receives: every element, in order, filling the given tensor."""
    run_ranks(subject, _world(subject), _send_recv)


def _send_recv(strategy: ParallelStrategy, context: RankContext) -> None:
    strategy.connect(context)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for turn in range(4):
            if context.rank == turn % 2:
                strategy.send(_sent(turn, dtype), 1 - turn % 2)
            elif context.rank == 1 - turn % 2:
                _receive(strategy, turn, dtype)
    strategy.close()


def _sent(turn: int, dtype: torch.dtype) -> torch.Tensor:
    x = (_values(turn, (5, 3)) * 100).to(dtype)
    return x if turn < 2 else x.T.contiguous().T


def _receive(strategy: ParallelStrategy, turn: int, dtype: torch.dtype) -> None:
    x = torch.zeros(5, 3, dtype=dtype)
    got, want = strategy.recv(x, turn % 2), _sent(turn, dtype)
    require(torch.equal(got, want), f"message {turn} of {dtype} arrived changed")
    require(torch.equal(x, want), f"message {turn} of {dtype} did not fill the given tensor")


def pipeline(subject: Subject) -> None:
    """Hidden states of many steps pass through all ranks without one being lost or swapped."""
    run_ranks(subject, _world(subject), _pipeline)


def _pipeline(strategy: ParallelStrategy, context: RankContext) -> None:
    strategy.connect(context)
    for step in range(20):
        x = _values(step, (step % 5 + 1, 8))
        got = x if context.rank == 0 else strategy.recv(torch.empty_like(x), context.rank - 1)
        require(torch.allclose(got, x + context.rank), f"step {step} arrived as another one's or changed")
        if context.rank + 1 < context.world:
            strategy.send(got + 1, context.rank + 1)
    strategy.close()


def missing_peer(subject: Subject) -> None:
    """`connect` raises TimeoutError, in time, when another rank does not appear."""
    run_ranks(subject, _world(subject), _missing_peer, only=(0,), timeout_s=1.0)


def _missing_peer(strategy: ParallelStrategy, context: RankContext) -> None:
    start = time.monotonic()
    try:
        strategy.connect(context)
    except TimeoutError:
        require(time.monotonic() - start < context.timeout_s + 10, "noticed a missing rank far too late")
        return
    raise NonconformanceError("connect returned although a rank is missing")


def _values(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CHECKS: tuple[Check, ...] = (
    covers_layers,
    ends_once,
    ranks_in_order,
    repeatable,
    alone,
    all_reduce,
    all_gather,
    send_recv,
    pipeline,
    missing_peer,
)
