"""Workers of the text process: copies of it, forked when needed, that share the vocabulary it has read.

A worker has one job at a time, so one that hangs or dies costs that job and delays no other. The process itself does
no jobs: it opens vocabularies, deals out the jobs and ends workers that take too long.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec

from inferd.channel import Channel
from inferd.link import TextDrop, TextJob, TextOpen, TextReady, TextResult, pack, text_in
from inferd.loop import Loop
from inferd.process import fork
from inferd.text.pipe import Pipe

if TYPE_CHECKING:
    from inferd.loop import Timer

WORKERS = 4
"""Most workers, and so jobs, at once."""
DEATHS = 2
"""Of workers at one job, after which it is given up: the first may have been an accident."""

LONG_BYTES = 1 << 20
"""A worker ends after a job of more, so that what it took goes back to the system."""

Work = Callable[[TextJob], TextResult]

_results = msgspec.msgpack.Decoder(TextResult)
_jobs = msgspec.msgpack.Decoder(TextJob)


@dataclass(slots=True)
class _Task:
    job: TextJob
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    pid: int
    pipe: Pipe
    task: _Task | None = None
    since: float = 0.0
    """When it began with its task, by the clock that leaves out pauses."""
    timer: Timer | None = None
    leaves: bool = False
    """Ends after its job."""


def serve(link: str, opener: Callable[[TextOpen], TextReady], work: Work, timeout_s: float) -> NoReturn:
    """Answer the front at `link`: models are opened here, jobs done by workers, each within `timeout_s`."""
    channel = Channel(link, bind=True, decoder=text_in)
    loop = Loop()
    pool = Pool(work, timeout_s, loop, channel.send)

    def read() -> None:
        for message in channel.recv_all():
            match message:
                case TextOpen():
                    pool.renew()
                    channel.send(opener(message))
                case TextJob():
                    pool.submit(message)
                case TextDrop():
                    pool.drop(message.key)

    loop.add(channel.socket, read)
    while True:
        loop.run_once()


class Pool:
    """Hands each job to a free worker; `answer` gets the results. On the main thread alone, as `fork` demands."""

    def __init__(self, work: Work, timeout_s: float, loop: Loop, answer: Callable[[TextResult], None]) -> None:
        self._work = work
        self._timeout_s = timeout_s
        self._loop = loop
        self._answer = answer
        self._workers: list[_Worker] = []
        self._waiting: deque[_Task] = deque()

    def submit(self, job: TextJob) -> None:
        """Do a job, sooner or later."""
        self._waiting.append(_Task(job))
        self._pump()

    def drop(self, key: str) -> None:
        """Forget a job, and end the worker that is at it."""
        self._waiting = deque(task for task in self._waiting if task.job.key != key)
        for worker in self._workers[:]:
            if worker.task is not None and worker.task.job.key == key:
                self._end(worker)
        self._pump()

    def renew(self) -> None:
        """Let the jobs to come be done by new workers, which know what this process knows by now."""
        for worker in self._workers[:]:
            worker.leaves = True
            if worker.task is None:
                self._end(worker)

    def _pump(self) -> None:
        while self._waiting:
            worker = next((w for w in self._workers if w.task is None and not w.leaves), None) or self._fork()
            if worker is None:
                return
            task = self._waiting.popleft()
            message = pack(task.job)
            try:
                worker.pipe.send(message)
            except OSError:  # it died while it was idle
                self._end(worker)
                self._waiting.appendleft(task)
                continue
            worker.task, worker.since = task, self._loop.awake
            worker.leaves = len(message) > LONG_BYTES
            self._watch(worker, self._timeout_s)

    def _watch(self, worker: _Worker, left_s: float) -> None:
        """End the worker when its job is not done after so many seconds more; pauses of the machine do not count."""

        def check() -> None:
            left = worker.since + self._timeout_s - self._loop.awake
            if left > 0:
                self._watch(worker, left)
                return
            assert worker.task is not None
            self._give_up(worker.task, f"took longer than text.timeout_s = {self._timeout_s:g} s", 1)
            self._end(worker)
            self._pump()

        worker.timer = self._loop.after(left_s, check)

    def _read(self, worker: _Worker) -> None:
        if not worker.pipe.has_news:
            return  # the loop's news was of an ended worker, whose file number this one has now
        task = worker.task
        try:
            result = _results.decode(worker.pipe.receive())
        except EOFError:
            self._end(worker)
            if task is not None:
                self._died(task)
        else:
            assert task is not None
            self._rest(worker)
            self._answer(msgspec.structs.replace(result, deaths=task.deaths))
        self._pump()

    def _rest(self, worker: _Worker) -> None:
        assert worker.timer is not None
        worker.timer.cancel()
        worker.task = None
        if worker.leaves:
            self._end(worker)

    def _died(self, task: _Task) -> None:
        """Try the job of a dead worker once more, before all others."""
        task.deaths += 1
        if task.deaths < DEATHS:
            self._waiting.appendleft(task)
        else:
            self._give_up(task, "ended the process at it twice", task.deaths)

    def _give_up(self, task: _Task, why: str, deaths: int) -> None:
        field = "messages" if task.job.messages is not None else "prompt"
        error = f"rendering or tokenizing {why}"
        self._answer(TextResult(key=task.job.key, error=error, field=field, deaths=deaths))

    def _fork(self) -> _Worker | None:
        """Make another worker; None where there are enough, or none can be had before another ends."""
        if len(self._workers) >= WORKERS:
            return None
        ours, theirs = map(Pipe, socket.socketpair())
        inherited = [worker.pipe for worker in self._workers] + [ours]

        def run() -> None:
            for pipe in inherited:
                pipe.close()
            _do_jobs(theirs, self._work)

        gc.freeze()  # so that collections in a worker leave the shared pages alone
        try:
            pid = fork(run)
        except OSError as error:
            ours.close()
            self._refuse_all(str(error))
            return None
        finally:
            theirs.close()
        worker = _Worker(pid, ours)
        self._workers.append(worker)
        self._loop.add(ours.fileno(), lambda: self._read(worker))
        return worker

    def _refuse_all(self, why: str) -> None:
        """Answer what waits where there is no worker and none can be made."""
        while self._waiting and not self._workers:
            self._give_up(self._waiting.popleft(), f"is not possible now: {why}", 0)

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._loop.remove(worker.pipe.fileno())
        worker.pipe.close()
        if worker.timer is not None:
            worker.timer.cancel()
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)


def _do_jobs(pipe: Pipe, work: Work) -> None:
    """Do jobs, one after another, until the other end is closed."""
    with suppress(EOFError):
        while True:
            pipe.send(pack(work(_jobs.decode(pipe.receive()))))
