"""The text process of one model, seen from the front: jobs in, results out, started anew when it ends.

It bounds and survives its jobs itself; here it is killed only when nothing at all comes from it. Clients take turns,
little is sent ahead, and nobody has all of its workers, so that many texts of one do not delay another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from inferd.channel import Channel, ChannelError
from inferd.front.turns import Turns
from inferd.link import TextDrop, TextJob, TextOpen, TextOut, TextReady, TextResult, text_out
from inferd.process import Child, describe_exit, spawn

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.config.schema import Text
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd.metrics import Metrics

AHEAD = 4
"""Jobs sent at most before one is answered: as many as the process does at once."""
AHEAD_OF_ONE = 2
"""Of them, those of one client."""
OPEN_TIMEOUT_S = 60.0
"""To read the vocabulary of a model, start of the process included."""
SILENCE_S = 5.0
"""Longer than a job may take, after which the process itself has failed."""
STARTS = 2
"""Times that a job is sent, and that the process may die while it opens the model."""
MAX_BACKOFF_S = 10.0

OnResult = Callable[[TextResult], None]


@dataclass(slots=True)
class _Item:
    """A job and who wants its answer."""

    job: TextJob
    client: int
    done: OnResult
    starts: int = 0


class TextProcess:
    """Owner of the process that renders and tokenizes for one model. `links` names the socket of each start."""

    def __init__(
        self,
        opening: TextOpen,
        links: Callable[[], Path],
        *,
        module: str,
        settings: Text,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        self._opening = opening
        self._links = links
        self._module = module
        self._settings = settings
        self._context = context
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._child: Child | None = None
        self._channel: Channel[TextOut] | None = None
        self.error = ""
        """Why the vocabulary could not be read; every job is answered with it."""
        self._open = False
        self._waiting: Turns[_Item] = Turns()
        self._jobs: dict[str, _Item] = {}
        """By key, waiting and sent."""
        self._sent: dict[str, _Item] = {}
        """The oldest first."""
        self._heard = 0.0
        """When the process last answered, or began to owe an answer, by the clock that leaves out pauses."""
        self._failures = 0
        self._failed_openings = 0
        self._start()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def submit(self, job: TextJob, client: int, done: OnResult) -> None:
        """Do a job of a client; `done` is called with its result exactly once, unless it is cancelled."""
        item = self._jobs[job.key] = _Item(job, client, done)
        if self.error:
            self._loop.after(0, lambda: self._finish(job.key, TextResult(key=job.key, error=self.error)))
            return
        self._waiting.push(client, item)
        self._pump()

    def cancel(self, key: str) -> bool:
        """Forget a job, and say whether it was here."""
        item = self._jobs.pop(key, None)
        if item is not None and self._sent.pop(key, None) is not None and self._channel is not None:
            self._channel.send(TextDrop(key=key))
            self._pump()
        return item is not None

    def close(self, why: str) -> None:
        """End the process and answer what is left with the reason."""
        self._fail(why)

    def check_time(self) -> None:
        """End the process when it owes an answer and gives none."""
        silence = self._loop.awake - self._heard
        if self._child is None:
            return
        if not self._open and silence > OPEN_TIMEOUT_S:
            self._fail(f"reading the vocabulary took longer than {OPEN_TIMEOUT_S:g} s")
        elif self._open and self._sent and silence > self._settings.timeout_s + SILENCE_S:
            self._restart("it does not answer")

    def _pump(self) -> None:
        """Send the process as much as it may have."""
        while self._open and self._channel is not None and len(self._sent) < AHEAD:
            item = self._waiting.pop(self._may_send)
            if item is None:
                return
            if item.job.key not in self._jobs:
                continue  # cancelled
            if not self._sent:
                self._heard = self._loop.awake
            self._sent[item.job.key] = item
            item.starts += 1
            self._channel.send(item.job)

    def _may_send(self, client: int) -> bool:
        return sum(item.client == client for item in self._sent.values()) < AHEAD_OF_ONE

    def _start(self) -> None:
        link = self._links()
        limits = ("--max-output-chars", str(self._settings.max_output_chars))
        try:
            self._child = spawn(self._module, str(link), "--timeout-s", str(self._settings.timeout_s), *limits)
        except OSError as error:
            self._retry_later(str(error))
            return
        self._channel = Channel(link, bind=False, decoder=text_out, context=self._context)
        self._loop.add(self._channel.socket, self._read)
        self._loop.add(self._child.pidfd, self._died)
        self._heard = self._loop.awake
        self._channel.send(self._opening)

    def _read(self) -> None:
        assert self._channel is not None
        try:
            answers = self._channel.recv_all()
        except ChannelError as error:
            self._restart(str(error))
            return
        for answer in answers:
            self._answered(answer)
        self._pump()

    def _answered(self, answer: TextOut) -> None:
        self._heard = self._loop.awake
        if isinstance(answer, TextReady):
            if answer.error:
                self._fail(answer.error)
            self._open = not answer.error
            return
        self._failures = 0
        if answer.deaths:
            self._note_end("a worker ended at its job", answer.deaths)
        if self._sent.pop(answer.key, None) is not None:
            self._finish(answer.key, answer)

    def _finish(self, key: str, result: TextResult) -> None:
        item = self._jobs.pop(key, None)
        if item is not None:
            item.done(result)

    def _died(self) -> None:
        assert self._child is not None
        assert self._channel is not None
        status = self._child.exit_status
        for answer in self._channel.recv_all():
            self._answered(answer)
        how = describe_exit(status if status is not None else -9)
        self._failed_openings += not self._open
        if self._failed_openings >= STARTS:
            self._fail(f"reading the vocabulary ended the text process {STARTS} times ({how})")
        elif not self.error:
            self._restart(f"died: {how}")

    def _fail(self, why: str) -> None:
        """End the process for good; all that waits is answered."""
        self.error = why
        self._clear()
        self._sent.clear()
        self._waiting.clear()
        for key in list(self._jobs):
            self._finish(key, TextResult(key=key, error=why))

    def _restart(self, why: str) -> None:
        """End the process and start another, which gets again what was not answered."""
        self._note_end(why, 1)
        self._clear()
        again, self._sent = list(self._sent.values()), {}
        self._waiting.put_first([item for item in again if item.starts < STARTS])
        for item in again:
            if item.starts >= STARTS:
                error = f"the text process ended {STARTS} times while it had this"
                self._finish(item.job.key, TextResult(key=item.job.key, error=error))
        self._retry_later(why)

    def _note_end(self, why: str, count: int) -> None:
        self._log.warning("text process restarts", model=self._opening.model, why=why, pid=self.pid)
        self._metrics.count("text_restarts_total", count)

    def _retry_later(self, why: str) -> None:
        """Start again at once the first time, later when starts keep failing."""
        delay = min(MAX_BACKOFF_S, 0.1 * 2**self._failures) if self._failures else 0.0
        self._failures += 1
        if self._failures == 5:
            self._log.error("text process keeps dying", model=self._opening.model, why=why)
        self._loop.after(delay, self._resume)

    def _resume(self) -> None:
        if not self.error:
            self._start()

    def _clear(self) -> None:
        self._open = False
        if self._child is None or self._channel is None:
            return
        self._loop.remove(self._channel.socket)
        self._loop.remove(self._child.pidfd)
        self._child.reap()
        self._channel.close()
        self._child = self._channel = None
