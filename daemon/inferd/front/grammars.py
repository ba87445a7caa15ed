"""The grammar process seen from the front: it tries what requests ask for, and is killed when that takes too long.

It has one grammar at a time, and clients take turns, so that a harmful one costs its own request and the others a
wait of at most `grammar.timeout_s`. What is known of a grammar is kept: it is tried once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from inferd.channel import Channel, ChannelError
from inferd.link import Grammar, GrammarJob, GrammarResult, grammar_out
from inferd.process import Child, describe_exit, spawn

if TYPE_CHECKING:
    from pathlib import Path

    import zmq

    from inferd.log import Logger
    from inferd.loop import Loop, Timer
    from inferd.metrics import Metrics

START_S = 20.0
"""More time for the first grammar of a process, which has to start."""
WALL, MIN_WALL_S = 4.0, 15.0
"""A process may take so many times its processor time before it counts as hung; not less than a machine may pause."""
OWN_FAULT = {"SIGPROF", "SIGSEGV", "SIGABRT", "SIGBUS"}
"""Ends that a grammar brings about wherever it is tried: out of time, of stack, of memory."""
RETRY_S = 1.0
"""Pause after a process that could not be started."""
KNOWN = 1024

OnVerdict = Callable[[str], None]
"""Called with why a grammar cannot be used, empty when it can."""


@dataclass(slots=True)
class _Job:
    key: str
    client: int
    grammar: Grammar
    digest: bytes
    done: OnVerdict


class Grammars:
    """Owner of the grammar process. Without a module every grammar is taken as it is."""

    def __init__(
        self,
        module: str | None,
        timeout_s: float,
        runtime: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._runtime = runtime
        self._context = context
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._numbers = count(1)
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._waiting: OrderedDict[int, deque[_Job]] = OrderedDict()
        """By client; the next one's turn comes first."""
        self._at: _Job | None = None
        self._child: Child | None = None
        self._channel: Channel[GrammarResult] | None = None
        self._fresh = True
        self._clock: Timer | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def check(self, key: str, client: int, grammar: Grammar, done: OnVerdict) -> None:
        """Try a grammar; `done` is called once, maybe at once, unless the request of this key is cancelled."""
        digest = hashlib.blake2b(f"{grammar.kind}\0{grammar.text}".encode(errors="replace"), digest_size=16).digest()
        if self._module is None or digest in self._known:
            done(self._known.get(digest, ""))
            return
        self._waiting.setdefault(client, deque()).append(_Job(key, client, grammar, digest, done))
        self._pump()

    def cancel(self, key: str) -> None:
        """Forget a request. A grammar that is being tried is tried to its end, as its verdict is worth knowing."""
        for client, jobs in list(self._waiting.items()):
            left = deque(job for job in jobs if job.key != key)
            if len(left) != len(jobs):
                self._keep(client, left)
        if self._at is not None and self._at.key == key:
            self._at.done = lambda verdict: None

    def close(self) -> None:
        self._stop_clock()
        if self._child is not None:
            self._clear()

    def _pump(self) -> None:
        """Send the next grammar when there is none under way."""
        while self._at is None and self._waiting:
            client, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            self._keep(client, jobs)
            known = self._known.get(job.digest)
            if known is not None:
                job.done(known)
                continue
            if self._channel is None and not self._start():
                self._waiting.setdefault(client, deque()).appendleft(job)
                self._loop.after(RETRY_S, self._pump)
                return
            assert self._channel is not None
            self._at = job
            self._channel.send(GrammarJob(key=job.key, grammar=job.grammar))
            limit = max(MIN_WALL_S, WALL * self._timeout_s) + (START_S if self._fresh else 0.0)
            self._clock = self._loop.after(limit, self._too_long)

    def _keep(self, client: int, jobs: deque[_Job]) -> None:
        """Put what is left of a client's jobs behind those of the others."""
        self._waiting.pop(client, None)
        if jobs:
            self._waiting[client] = jobs

    def _start(self) -> bool:
        assert self._module is not None
        link = self._runtime / f"g{next(self._numbers)}.sock"
        try:
            self._child = spawn(self._module, str(link), str(self._timeout_s))
        except OSError as error:
            self._log.warning("the grammar process does not start", why=str(error))
            return False
        self._channel = Channel(link, bind=False, decoder=grammar_out, context=self._context)
        self._fresh = True
        self._loop.add(self._channel.socket, self._read)
        self._loop.add(self._child.pidfd, self._died)
        return True

    def _read(self) -> None:
        assert self._channel is not None
        try:
            results = self._channel.recv_all()
        except ChannelError as error:
            self._give_up(f"the process that tried it said nonsense: {error}", lasting=False)
            return
        for result in results:
            self._fresh = False
            self._settle(result.error, lasting=True)
        self._pump()

    def _too_long(self) -> None:
        self._give_up("the process that tried it hangs, or has to wait for processor time", lasting=False)

    def _died(self) -> None:
        """A verdict may have been sent before the end."""
        assert self._child is not None
        self._read()
        if self._child is None:
            return
        status = self._child.exit_status
        how = describe_exit(status if status is not None else -9)
        why = f"the process that tried it ended with {how}"
        if how == "SIGPROF":
            why = f"it takes more than grammar.timeout_s = {self._timeout_s:g} s to compile"
        elif how in OWN_FAULT:
            why = f"it is nested too deeply or needs too much memory to compile ({how})"
        self._give_up(why, lasting=how in OWN_FAULT)

    def _give_up(self, why: str, *, lasting: bool) -> None:
        """End the process, with the grammar that was in it."""
        self._log.warning("grammar process ends", why=why, pid=self.pid)
        self._metrics.count("grammar_restarts_total")
        self._clear()
        self._settle(why, lasting=lasting)
        self._pump()

    def _settle(self, verdict: str, *, lasting: bool) -> None:
        """Tell the verdict on the grammar that was tried; a lasting one is remembered."""
        job, self._at = self._at, None
        self._stop_clock()
        if job is None:
            return
        if lasting:
            self._known[job.digest] = verdict
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        job.done(verdict)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _clear(self) -> None:
        assert self._child is not None
        assert self._channel is not None
        self._loop.remove(self._channel.socket)
        self._loop.remove(self._child.pidfd)
        self._child.reap()
        self._channel.close()
        self._child = self._channel = None
