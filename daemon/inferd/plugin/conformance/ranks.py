"""Run a body in several rank processes that are joined by the strategy under test."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from inferd.plugin.conformance.report import NonconformanceError, Subject
from inferd.plugin.contracts import ParallelStrategy, RankContext

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Body = Callable[[ParallelStrategy, RankContext], None]
"""Runs in every rank; a module-level function. Raises NonconformanceError."""

TIMEOUT_S = 60.0


def run_ranks(subject: Subject, world: int, body: Body, *, only: tuple[int, ...] = (), timeout_s: float = 20.0) -> None:
    """Start the ranks (all, or `only` some), run `body` in each, raise the first complaint.

    Processes come from a fork server that has torch loaded already; it ends with this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["inferd.plugin.conformance.ranks"])
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{Path(folder) / 'rendezvous'}"
        started: list[tuple[int, BaseProcess, Any]] = []
        for rank in only or range(world):
            ours, theirs = context.Pipe(duplex=False)
            where = RankContext(
                rank=rank, world=world, rendezvous=rendezvous, timeout_s=timeout_s, options=subject.table
            )
            process = context.Process(target=_rank, args=(theirs, subject, body, where), daemon=True)
            process.start()
            theirs.close()
            started.append((rank, process, ours))
        try:
            complaints = [f"rank {rank}: {said}" for rank, _, ours in started if (said := _hear(ours))]
        finally:
            for _, process, ours in started:
                process.kill()
                process.join()
                ours.close()
    if complaints:
        raise NonconformanceError("; ".join(complaints))


def _hear(connection: Any) -> str:
    """Return what a rank has to say: nothing when all is well."""
    try:
        return connection.recv() if connection.poll(TIMEOUT_S) else f"no answer within {TIMEOUT_S:.0f} s"
    except EOFError:
        return "died"


def _rank(answer: Any, subject: Subject, body: Body, where: RankContext) -> None:
    torch.set_num_threads(1)
    try:
        body(subject.make(), where)
        answer.send("")
    except NonconformanceError as fault:
        answer.send(str(fault))
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        frame = traceback.extract_tb(error.__traceback__)[-1]
        answer.send(f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
