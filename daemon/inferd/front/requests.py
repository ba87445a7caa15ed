"""The books of all unfinished requests: their clocks, what clients are told meanwhile, every way to end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from inferd.front.budget import ByteBudget, weigh
from inferd.front.errors import Refusal
from inferd.front.outbox import Piece, Stream
from inferd.front.records import Request, Session
from inferd.link import Abort
from inferd.metrics import timings
from inferd_client.protocol import Accepted, Code, Done, Error, Progress

if TYPE_CHECKING:
    from inferd.config.schema import Daemon
    from inferd.front.accounts import Accounts
    from inferd.front.grammars import Grammars
    from inferd.front.model import Model
    from inferd.front.models import Models
    from inferd.front.sessions import Sessions
    from inferd.front.texts import Texts
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd.metrics import Metrics
    from inferd_client.protocol import Generate, Usage

PROGRESS_S = 0.9
"""Longest silence towards a client about a request that goes on."""
PROBE_S = 0.4
"""Longest silence towards a client with work here, so that its absence is noticed."""
LATE_S = 0.25
"""How much later than the engine the front enforces deadlines of what the engine has."""


class Requests:
    """All unfinished `generate` requests."""

    def __init__(
        self,
        settings: Daemon,
        sessions: Sessions,
        models: Models,
        texts: Texts,
        grammars: Grammars,
        accounts: Accounts,
        loop: Loop,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._models = models
        self._texts = texts
        self._grammars = grammars
        self._accounts = accounts
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._numbers = count(1)
        self.live: dict[str, Request] = {}
        self.budget = ByteBudget(settings.max_pending_bytes)
        self.num_queued = 0
        self.draining = False
        self.on_open: Callable[[Request], None] = lambda _: None
        self.on_close: Callable[[Request, str], None] = lambda _request, _how: None
        """Called when a request came and when it is over, with its end as the log names it."""
        loop.after(PROBE_S, self._probe)

    def refuse_if_draining(self) -> None:
        if self.draining:
            raise Refusal(Code.SERVER_SHUTDOWN, "the daemon is shutting down", retry_safe=True)

    def open(self, session: Session, message: Generate, model: Model) -> Request:
        """Enter a new request in all books and start its clocks. Raises Refusal."""
        weight = weigh(message)
        self.budget.take(weight)
        now = self._loop.clock()
        request = Request(
            key=f"{session.number}.{next(self._numbers)}",
            session=session,
            message=message,
            model=model,
            arrival=now,
            stream=Stream(message.id),
            last_sent=now,
            weight=weight,
        )
        self.live[request.key] = session.requests[message.id] = model.requests[request.key] = request
        self.num_queued += 1
        if message.deadline_ms is not None:
            request.deadline = now + message.deadline_ms / 1000
            self._call(request, message.deadline_ms / 1000, self._too_late)
        if message.queue_timeout_ms is not None:
            request.queue_deadline = now + message.queue_timeout_ms / 1000
            self._call(request, message.queue_timeout_ms / 1000, self._queued_too_long)
        self._call(request, PROGRESS_S, self._progress)
        self.on_open(request)
        return request

    def _call(self, request: Request, delay_s: float, action: Callable[[Request], None]) -> None:
        """Call `action` later unless the request has ended by then."""
        request.timers[action.__name__] = self._loop.after(delay_s, lambda: action(request))

    # --- progress and time ----------------------------------------------------------------------

    def started(self, request: Request) -> None:
        """The request runs; it no longer counts as queued."""
        if request.queued:
            request.queued = False
            self.num_queued -= 1

    def _progress(self, request: Request) -> None:
        silent = self._loop.clock() - request.last_sent
        if silent >= 0.95 * PROGRESS_S:
            self.send_progress(request)
            silent = 0.0
        self._call(request, PROGRESS_S - silent, self._progress)

    def send_progress(self, request: Request) -> None:
        """Tell where the request stands, unless older news still wait to be sent."""
        request.last_sent = self._loop.clock()
        if request.session.outbox:
            return
        model, state, done, total, reason = request.model, request.state, request.done, request.total, request.reason
        if state in ("text", "loading") and model.card is None:  # its text is made meanwhile
            state, done, total, reason = "loading", model.load_done, model.load_total, model.detail
        self.send(request, Progress(id=request.id, state=state, done=done, total=total, reason=reason))

    def _probe(self) -> None:
        """Say something to each client that was told nothing lately: a dead one is noticed by the send."""
        now = self._loop.clock()
        for session in self._sessions.all():
            if session.requests and session.data is not None and now - session.last_sent >= PROBE_S:
                self.send_progress(next(iter(session.requests.values())))
        self._loop.after(PROBE_S / 2, self._probe)

    def _too_late(self, request: Request) -> None:
        """The deadline passed. What the engine has it ends itself; a hung one is overtaken by us."""
        if request.submitted:
            self._call(request, LATE_S, self._much_too_late)
        else:
            self._much_too_late(request)

    def _much_too_late(self, request: Request) -> None:
        text = f"not finished within deadline_ms = {request.message.deadline_ms}"
        self.fail(request, Refusal(Code.DEADLINE_EXCEEDED, text, field="deadline_ms"))

    def _queued_too_long(self, request: Request) -> None:
        if request.submitted:
            self._call(request, LATE_S, self._queued_much_too_long)
        else:
            self._queued_much_too_long(request)

    def _queued_much_too_long(self, request: Request) -> None:
        if request.queued:
            text = f"not started within queue_timeout_ms = {request.message.queue_timeout_ms}"
            self.fail(request, Refusal(Code.DEADLINE_EXCEEDED, text, field="queue_timeout_ms"))

    # --- endings --------------------------------------------------------------------------------

    def cancel(self, session: Session, request_id: str, *, anywhere: bool = False) -> str:
        """End a request of this session, or those of this id in every session; say what was done."""
        sessions = self._sessions.all() if anywhere else [session]
        found = [s.requests[request_id] for s in sessions if request_id in s.requests]
        for request in found:
            self.cancel_request(request)
        if not found and not anywhere:
            session.early.note(request_id, self._loop.clock())
        return "cancelled" if found else "not running"

    def cancel_request(self, request: Request) -> None:
        """End a request as cancelled, with the text that was held back."""
        for index, choice in enumerate(request.choices):
            if choice.finish is None:
                choice.finish = "cancelled"
                self._sessions.send_piece(request, Piece(index, choice.text.finish(), finish="cancelled"))
                if request.ended:
                    return
        self.complete(request)

    def abandon(self, session: Session) -> None:
        """End the work of a client that is gone; what it was told half of is answered if it resumes."""
        for request in list(session.requests.values()):
            if request.stream.seq and not session.forgotten:
                self.cancel_request(request)
            else:
                self._close(request, "client gone")
                session.outbox.drop(request.stream)

    def slow(self, request: Request) -> None:
        text = f"the client does not read: more than {self._settings.out_buffer_bytes} bytes wait for it"
        self.fail(request, Refusal(Code.SLOW_CONSUMER, text, limit=self._settings.out_buffer_bytes))

    def complete(self, request: Request) -> None:
        """All choices are finished: the last message."""
        if request.ended:
            return
        now = self._loop.clock()
        measured = timings(request.arrival, request.first_scheduled, [c.clock for c in request.choices], now)
        finishes = request.finishes
        reason = finishes[0].reason
        self._close(request, reason)
        usage = request.usage
        self._metrics.finished(reason, measured, usage, now)
        cost = self._accounts.close_request(request, measured)
        if reason in ("stop", "length"):
            request.model.suspects.pop(request.digest, None)
        done = Done(id=request.id, reason=reason, finish=finishes, usage=usage, timings=measured, cost=cost)
        self._sessions.send(request.session, done)

    def fail(self, request: Request, refusal: Refusal) -> None:
        """End a request with an error."""
        if request.ended:
            return
        self._close(request, refusal.code)
        usage = request.usage if request.submitted else None
        self._sessions.send(request.session, error_of(refusal, request.id, usage))
        self._metrics.count("request_error_total", code=refusal.code)

    def model_failed(self, model: Model, code: Code, why: str) -> None:
        for request in list(model.requests.values()):
            self.fail(request, Refusal(code, f"model {model.name}: {why}"))

    def engine_lost(self, model: Model, why: str) -> None:
        """End what was in the dead engine; what was not yet waits for the next one."""
        for request in [r for r in model.requests.values() if r.submitted]:
            text = f"the engine ended while it had this request: {why}"
            self.fail(request, Refusal(Code.ENGINE_LOST, text, retry_safe=not request.num_output))

    def end_all(self, code: Code, text: str) -> None:
        """End everything, at shutdown."""
        for request in list(self.live.values()):
            self.fail(request, Refusal(code, text, retry_safe=not request.num_output))

    def _close(self, request: Request, how: str) -> None:
        """Take a request out of all books; the engine forgets it too."""
        request.ended = True
        self.started(request)
        for timer in request.timers.values():
            timer.cancel()
        del self.live[request.key]
        self.budget.give(request.weight)
        del request.session.requests[request.id]
        request.session.early.ended(request.id)
        model = request.model
        del model.requests[request.key]
        if request.submitted:
            model.num_submitted -= 1
            if model.channel is not None and model.card is not None and how not in ("stop", "length"):
                model.channel.send(Abort(key=request.key))
        else:
            self._texts.cancel(request.key)
            self._grammars.cancel(request.key)
        self._models.released(model)
        self.on_close(request, str(how))
        self._log.info(
            "request",
            id=request.id,
            client=request.session.name,
            model=model.name,
            end=str(how),
            prompt_tokens=request.num_prompt,
            output_tokens=request.num_output,
            seconds=round(self._loop.clock() - request.arrival, 3),
        )

    def send(self, request: Request, reply: Accepted | Progress) -> None:
        request.last_sent = self._loop.clock()
        self._sessions.send(request.session, reply)


def error_of(refusal: Refusal, request_id: str | None, usage: Usage | None = None) -> Error:
    """Return the protocol message of a refusal."""
    return Error(
        code=refusal.code,
        message=refusal.message,
        id=request_id,
        field=refusal.field,
        limit=refusal.limit,
        retry_after_ms=refusal.retry_after_ms,
        retry_safe=refusal.retry_safe,
        usage=usage,
    )
