"""The executor of a model that is spread over ranks.

The worker itself is rank 0; each other rank is a child process. Every rank gets every batch; hidden
states travel between ranks by the parallel strategy; the last rank samples and its output comes back.
A rank that ends, for whatever reason, ends the step with RuntimeError, and so the worker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import zmq

from inferd.channel import Channel
from inferd.engine.assembly import Assembly, Progress, build_runner
from inferd.engine.executor import Executor
from inferd.engine.rank_link import (
    RankConnect,
    RankConnected,
    RankFailed,
    RankLoaded,
    RankOut,
    RankOutput,
    RankProgress,
    RankStart,
    pack_batch,
    rank_out,
)
from inferd.load.errors import LoadError
from inferd.plugin.contracts import RankContext
from inferd.plugin.manifest import manifest
from inferd.process import Child, describe_exit, spawn

if TYPE_CHECKING:
    from inferd.engine.batch import Batch, StepOutput

M = TypeVar("M", RankLoaded, RankConnected, RankOutput)

TIMEOUT_S = 120.0
"""Longest wait of one rank for another: for all to join, and for a hidden state."""
DEATH_S = 1.0
"""After a failed send or receive: time in which a dead rank is surely seen as dead."""


class RankExecutor(Executor):
    """Build with an `Assembly` of several ranks; loads the shares of all of them.

    Raises LoadError when a rank cannot load or is lost meanwhile. Call from the main thread: ranks are
    children that die with the thread that started them.
    """

    def __init__(self, assembly: Assembly, progress: Progress | None = None) -> None:
        self._progress: Progress = progress or (lambda phase, done, total: None)
        self._folder = _make_folder(assembly.settings.runtime)
        self._strategy = assembly.resolution.parallel
        self._done: deque[StepOutput] = deque()
        self._ranks: list[_Rank] = []
        self._poller = zmq.Poller()
        try:
            self._start(assembly)
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError):
                raise LoadError(str(error)) from error
            raise

    def _start(self, assembly: Assembly) -> None:
        placements = assembly.placement.ranks
        for placement in placements[1:]:
            self._spawn(placement.rank)
        for rank in self._ranks:
            rank.channel.send(
                RankStart(
                    settings=assembly.settings,
                    rank=rank.number,
                    shape=assembly.shape,
                    manifest=manifest(assembly.resolution),
                )
            )
        self._runner = build_runner(assembly, 0, self._progress)
        loaded = [self._await(rank, RankLoaded) for rank in self._ranks]
        self.weight_bytes = self._runner.decoder.weight_bytes + sum(r.weight_bytes for r in loaded)
        self.rounds_activations = self._runner.decoder.rounds_activations
        self.weights_note = "; ".join(_notes(self._runner.decoder.weights_note, *(r.weights_note for r in loaded)))
        self._last = None if placements[0].samples else next(r for r in self._ranks if placements[r.number].samples)
        self._join(len(placements))

    def _spawn(self, number: int) -> None:
        rank = _Rank(number, self._folder / str(number))
        self._ranks.append(rank)
        self._poller.register(rank.channel.socket, zmq.POLLIN)
        self._poller.register(rank.child.pidfd, zmq.POLLIN)

    def _join(self, world: int) -> None:
        rendezvous = f"file://{self._folder / 'rendezvous'}"
        for rank in self._ranks:
            rank.channel.send(RankConnect(rendezvous=rendezvous, timeout_s=TIMEOUT_S))
        self._strategy.connect(RankContext(rank=0, world=world, rendezvous=rendezvous, timeout_s=TIMEOUT_S, options={}))
        for rank in self._ranks:
            self._await(rank, RankConnected)

    def submit(self, batch: Batch) -> None:
        step = pack_batch(batch)
        for rank in self._ranks:
            rank.channel.send(step)
        try:
            output = self._runner.step(batch)
        except RuntimeError as error:
            self._blame(error)
            raise
        if output is not None:
            self._done.append(output)

    def collect(self) -> StepOutput:
        if self._done:
            return self._done.popleft()
        assert self._last is not None
        return self._await(self._last, RankOutput).output

    def close(self) -> None:
        for rank in self._ranks:
            rank.end()
        self._ranks = []
        with suppress(RuntimeError):
            self._strategy.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await(self, rank: _Rank, kind: type[M]) -> M:
        """Wait for a message of this kind, watching all ranks. Raises RuntimeError when one is lost."""
        while not rank.inbox:
            self._listen(None)
        message = rank.inbox.popleft()
        if not isinstance(message, kind):
            raise RuntimeError(f"rank {rank.number} sent {type(message).__name__} in place of {kind.__name__}")
        return message

    def _blame(self, error: RuntimeError) -> None:
        """Say which rank was lost, if one was, in place of what its loss did here."""
        end = time.monotonic() + DEATH_S
        try:
            while time.monotonic() < end:
                self._listen(end - time.monotonic())
        except RuntimeError as lost:
            raise lost from error

    def _listen(self, timeout_s: float | None) -> None:
        """Take what the ranks have sent, or wait for the next event. Raises RuntimeError for a lost rank."""
        ended = [rank for rank in self._ranks if rank.child.exit_status is not None]
        heard = sum([self._read(rank) for rank in self._ranks])
        if ended:
            raise RuntimeError(f"rank {ended[0].number} is lost: {describe_exit(ended[0].child.exit_status or 0)}")
        if not heard:
            self._poller.poll(None if timeout_s is None else max(1, int(timeout_s * 1000)))

    def _read(self, rank: _Rank) -> int:
        messages = rank.channel.recv_all()
        for message in messages:
            match message:
                case RankProgress():
                    self._progress(f"rank {rank.number}: {message.phase}", message.done, message.total)
                case RankFailed():
                    raise RuntimeError(f"rank {rank.number} failed: {message.message}")
                case _:
                    rank.inbox.append(message)
        return len(messages)


class _Rank:
    """A child process that holds one rank, and what it has sent."""

    def __init__(self, number: int, link: Path) -> None:
        self.number = number
        self.inbox: deque[RankOut] = deque()
        self.channel = Channel(link, bind=False, decoder=rank_out)
        self.child: Child = spawn("inferd.engine.rank", str(link))

    def end(self) -> None:
        self.child.reap()
        self.channel.close()


def _make_folder(runtime: str) -> Path:
    """Make the folder of the ranks' sockets; in a runtime folder no path in it is longer than control.sock's."""
    if not runtime:
        return Path(tempfile.mkdtemp(prefix="inferd-"))
    folder = Path(runtime) / f"r{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)  # of a dead worker that had our pid
    folder.mkdir(mode=0o700)
    return folder


def _notes(*notes: str) -> list[str]:
    """Return the notes that say something, each with its rank."""
    return [f"rank {rank}: {note}" for rank, note in enumerate(notes) if note]
