"""A further rank of an engine worker: `python -m inferd.engine.rank LINK`. Ends with the worker."""

from __future__ import annotations

from inferd.process import guard

if __name__ == "__main__":
    guard()  # before anything that takes time

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from inferd.channel import Channel
from inferd.engine.rank_link import (
    RankConnect,
    RankConnected,
    RankFailed,
    RankIn,
    RankLoaded,
    RankOutput,
    RankProgress,
    RankStart,
    RankStep,
    rank_in,
    unpack_batch,
)

if TYPE_CHECKING:
    from inferd.engine.assembly import Assembly
    from inferd.engine.runner import Runner
    from inferd.plugin.contracts import ParallelStrategy

M = TypeVar("M")


def main(link: str) -> int:
    """Load, connect, then run every step until the worker ends this process; the exit code."""
    channel = Channel(link, bind=True, decoder=rank_in)
    try:
        _serve(channel)
    except Exception as error:  # noqa: BLE001 - the worker hears of it and ends
        channel.send(RankFailed(message=f"{type(error).__name__}: {error}"))
    channel.close()
    return 1


def _serve(channel: Channel[RankIn]) -> None:
    messages = _messages(channel)
    start = _expect(messages, RankStart)
    assembly, runner = _load(start, channel)
    channel.send(RankLoaded(weight_bytes=runner.decoder.weight_bytes, weights_note=runner.decoder.weights_note))
    _connect(assembly.resolution.parallel, start.rank, assembly, _expect(messages, RankConnect))
    channel.send(RankConnected())
    while True:
        output = runner.step(unpack_batch(_expect(messages, RankStep)))
        if output is not None:
            channel.send(RankOutput(output=output))


def _load(start: RankStart, channel: Channel[RankIn]) -> tuple[Assembly, Runner]:
    """Choose the same plugins as the worker, or say where they differ, and load this rank's layers."""
    from inferd.engine.assembly import assemble, build_runner
    from inferd.plugin.manifest import compare, manifest

    assembly = replace(assemble(start.settings), shape=start.shape)
    differences = compare(start.manifest, manifest(assembly.resolution))
    if differences:
        raise RuntimeError(f"rank {start.rank} found other plugins than the worker: {'; '.join(differences)}")

    def progress(phase: str, done: int, total: int) -> None:
        channel.send(RankProgress(phase=phase, done=done, total=total))

    return assembly, build_runner(assembly, start.rank, progress)


def _connect(strategy: ParallelStrategy, rank: int, assembly: Assembly, connect: RankConnect) -> None:
    from inferd.plugin.contracts import RankContext

    strategy.connect(
        RankContext(
            rank=rank,
            world=assembly.placement.world,
            rendezvous=connect.rendezvous,
            timeout_s=connect.timeout_s,
            options={},
        )
    )


def _messages(channel: Channel[RankIn]) -> Iterator[RankIn]:
    while True:
        channel.wait()
        yield from channel.recv_all()


def _expect(messages: Iterator[RankIn], kind: type[M]) -> M:
    message = next(messages)
    if not isinstance(message, kind):
        raise RuntimeError(f"expected {kind.__name__}, the worker sent {type(message).__name__}")
    return message


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
