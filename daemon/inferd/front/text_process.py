"""The text process of one model, seen from the front: jobs in, results out, killed and started anew when it hangs.

Clients take turns, and little is sent ahead, so that many texts of one do not delay another's. The process works in
order, so the oldest unanswered message is the one it is at: that one is given up when it takes too long. When the
process dies, answers may have died with it: what it had is sent again one at a time, and what is alone with it at a
second death is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from inferd.channel import Channel, ChannelError
from inferd.front.turns import Turns
from inferd.link import TextJob, TextOpen, TextOut, TextReady, TextResult, text_out
from inferd.process import Child, describe_exit, spawn

if TYPE_CHECKING:
    from pathlib import Path

    from inferd.config.schema import Text
    from inferd.front.loop import Loop
    from inferd.log import Logger
    from inferd.metrics import Metrics

AHEAD = 2
"""Messages sent before the oldest is answered: one to work at, one that is there when it is done."""
OPEN_TIMEOUT_S = 60.0
"""To read the vocabulary of a model, start of the process included."""
MAX_BACKOFF_S = 10.0

OnResult = Callable[[TextResult], None]


@dataclass(slots=True)
class _Item:
    """One message that wants an answer."""

    message: TextOpen | TextJob
    done: OnResult | None = None
    cancelled: bool = False


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
        self._waiting: Turns[_Item] = Turns()
        self._waiting.put_first([_Item(opening)])
        self._sent: deque[_Item] = deque()
        self._jobs: dict[str, _Item] = {}
        self._since = 0.0
        """When the process began with the oldest sent message, by the clock that leaves out pauses."""
        self._failures = 0
        self._careful = 0
        """So many answers are still awaited one at a time."""
        self._pausing = False
        self._pump()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def submit(self, job: TextJob, client: int, done: OnResult) -> None:
        """Do a job of a client; `done` is called with its result exactly once, unless it is cancelled."""
        item = self._jobs[job.key] = _Item(job, done)
        if self.error:
            self._loop.after(0, lambda: self._finish(item, TextResult(key=job.key, error=self.error)))
            return
        self._waiting.push(client, item)
        self._pump()

    def cancel(self, key: str) -> bool:
        """Forget a job, and say whether it was here; if it was sent already its result is ignored."""
        item = self._jobs.pop(key, None)
        if item is not None:
            item.cancelled = True
        return item is not None

    def close(self, why: str) -> None:
        """End the process and answer what is left with the reason."""
        self._fail(why)

    def check_time(self) -> None:
        """Kill the process when it is too long at one message."""
        if not self._sent or self._child is None:
            return
        opening = isinstance(self._sent[0].message, TextOpen)
        limit = OPEN_TIMEOUT_S if opening else self._settings.timeout_s
        if self._loop.awake - self._since <= limit:
            return
        if self._give_up_oldest(f"took longer than text.timeout_s = {limit:g} s"):
            self._restart("time-out")

    def _pump(self) -> None:
        """Start the process if there is none, and send it as much as it may have."""
        if self._channel is None and self._waiting and not self._pausing:
            self._start()
        while self._channel is not None and self._waiting and len(self._sent) < (1 if self._careful else AHEAD):
            item = self._waiting.pop()
            if item.cancelled:
                continue
            if not self._sent:
                self._since = self._loop.awake
            self._sent.append(item)
            self._channel.send(item.message)

    def _start(self) -> None:
        link = self._links()
        limits = ("--max-output-chars", str(self._settings.max_output_chars))
        try:
            self._child = spawn(self._module, str(link), *limits)
        except OSError as error:
            self._retry_later(str(error))
            return
        self._channel = Channel(link, bind=False, decoder=text_out, context=self._context)
        self._loop.add(self._channel.socket, self._read)
        self._loop.add(self._child.pidfd, self._died)

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
        if not self._sent:
            return
        item = self._sent.popleft()
        self._since = self._loop.awake
        self._failures = 0
        self._careful = max(0, self._careful - 1)
        if isinstance(answer, TextResult):
            self._finish(item, answer)
        elif isinstance(answer, TextReady) and answer.error:
            self._fail(answer.error)

    def _finish(self, item: _Item, result: TextResult) -> None:
        if isinstance(item.message, TextJob) and not item.cancelled and item.done is not None:
            self._jobs.pop(item.message.key, None)
            item.done(result)

    def _died(self) -> None:
        assert self._child is not None
        assert self._channel is not None
        status = self._child.exit_status
        for answer in self._channel.recv_all():
            self._answered(answer)
        if self.error:
            return
        if not self._sent or not self._careful or self._give_up_oldest("ended the text process twice"):
            self._restart("died: " + describe_exit(status if status is not None else -9))

    def _give_up_oldest(self, why: str) -> bool:
        """Answer the oldest message with an error; False when it was the opening and so all is over."""
        item = self._sent.popleft()
        if isinstance(item.message, TextOpen):
            self._fail(f"reading the vocabulary {why}")
            return False
        field = "messages" if item.message.messages is not None else "prompt"
        self._finish(item, TextResult(key=item.message.key, error=f"rendering or tokenizing {why}", field=field))
        return True

    def _fail(self, why: str) -> None:
        """End the process for good; all that waits is answered."""
        self.error = why
        self._clear()
        left = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for item in left:
            if isinstance(item.message, TextJob):
                self._finish(item, TextResult(key=item.message.key, error=why))

    def _restart(self, why: str) -> None:
        """End the process; open the model again in a new one, then resend what was not answered."""
        self._log.warning("text process restarts", model=self._opening.model, why=why, pid=self.pid)
        self._metrics.count("text_restarts_total")
        self._clear()
        sent = [item for item in self._sent if isinstance(item.message, TextJob)]
        self._careful = 1 + len(sent)
        self._sent.clear()
        self._waiting.put_first([_Item(self._opening), *sent])
        self._retry_later(why)

    def _retry_later(self, why: str) -> None:
        """Start again at once the first time, later when starts keep failing."""
        delay = min(MAX_BACKOFF_S, 0.1 * 2**self._failures) if self._failures else 0.0
        self._failures += 1
        if self._failures == 5:
            self._log.error("text process keeps dying", model=self._opening.model, why=why)
        self._pausing = True
        self._loop.after(delay, self._resume)

    def _resume(self) -> None:
        self._pausing = False
        if not self.error:
            self._pump()

    def _clear(self) -> None:
        if self._child is None or self._channel is None:
            return
        self._loop.remove(self._channel.socket)
        self._loop.remove(self._child.pidfd)
        self._child.reap()
        self._channel.close()
        self._child = self._channel = None
