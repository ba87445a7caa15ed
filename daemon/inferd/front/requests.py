"""The life of a request in the front: accepted, tokenized, submitted, answered; and every way it can end."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from inferd.front.detok import TextStream
from inferd.front.errors import Refusal
from inferd.front.model import POISONOUS
from inferd.front.outbox import Piece, Stream
from inferd.front.records import Choice, Request, Session
from inferd.front.validate import check_generate, check_prompt
from inferd.link import Abort, Submit, TextJob, TextResult
from inferd.metrics import timings
from inferd_client.protocol import Accepted, Code, Done, Error, Progress

if TYPE_CHECKING:
    from inferd.config.schema import Daemon
    from inferd.front.loop import Loop
    from inferd.front.model import Model
    from inferd.front.models import Models
    from inferd.front.sessions import Sessions
    from inferd.front.texts import Texts
    from inferd.log import Logger
    from inferd.metrics import Metrics
    from inferd_client.protocol import Generate, Usage

PROGRESS_S = 0.9
"""Longest silence towards a client about a request that goes on."""
PROBE_S = 0.4
"""Longest silence towards a client with work here, so that its absence is noticed."""
LATE_S = 0.25
"""How much later than the engine the front enforces deadlines of what the engine has."""
SEED_BITS = 62


class Requests:
    """All unfinished `generate` requests."""

    def __init__(
        self,
        settings: Daemon,
        sessions: Sessions,
        models: Models,
        texts: Texts,
        loop: Loop,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._models = models
        self._texts = texts
        self._loop = loop
        self._metrics = metrics
        self._log = log
        self._numbers = count(1)
        self.live: dict[str, Request] = {}
        self.num_queued = 0
        self.draining = False
        loop.after(PROBE_S, self._probe)

    # --- arrival --------------------------------------------------------------------------------

    def accept(self, session: Session, message: Generate) -> None:
        """Take a request on its way. Raises Refusal."""
        if message.id in session.requests:
            raise Refusal(Code.DUPLICATE_REQUEST, f"request {message.id} is not finished yet", field="id")
        self.refuse_if_draining()
        check_generate(message)
        self._check_room(session)
        model = self._models.require(message.model)
        now = self._loop.clock()
        request = Request(
            key=f"{session.number}.{next(self._numbers)}",
            session=session,
            message=message,
            model=model,
            arrival=now,
            stream=Stream(message.id),
            last_sent=now,
        )
        self.live[request.key] = session.requests[message.id] = model.requests[request.key] = request
        self.num_queued += 1
        if message.keep_alive_s is not None:
            model.keep_alive_s = message.keep_alive_s
        self._set_timers(request, now)
        self._begin_text(request)

    def refuse_if_draining(self) -> None:
        if self.draining:
            raise Refusal(Code.SERVER_SHUTDOWN, "the daemon is shutting down", retry_safe=True)

    def _check_room(self, session: Session) -> None:
        full = None
        if self.num_queued >= self._settings.max_queue:
            full = (f"{self.num_queued} requests wait", "daemon.max_queue", self._settings.max_queue)
        elif len(session.requests) >= self._settings.max_client_requests:
            mine, limit = len(session.requests), self._settings.max_client_requests
            full = (f"this client has {mine} unfinished requests", "daemon.max_client_requests", limit)
        if full is not None:
            raise Refusal(
                Code.OVERLOADED,
                f"{full[0]}, the limit ({full[1]})",
                limit=full[2],
                retry_after_ms=self._metrics.retry_after_ms(self.num_queued, self._loop.clock()),
                retry_safe=True,
            )

    def _set_timers(self, request: Request, now: float) -> None:
        message, after = request.message, self._loop.after
        if message.deadline_ms is not None:
            request.deadline = now + message.deadline_ms / 1000
            request.timers.append(after(message.deadline_ms / 1000, lambda: self._too_late(request)))
        if message.queue_timeout_ms is not None:
            request.queue_deadline = now + message.queue_timeout_ms / 1000
            request.timers.append(after(message.queue_timeout_ms / 1000, lambda: self._queued_too_long(request)))
        request.timers.append(after(PROGRESS_S, lambda: self._progress(request)))

    # --- text -----------------------------------------------------------------------------------

    def _begin_text(self, request: Request) -> None:
        """Send what needs rendering or tokenizing to the text process."""
        message, bad_words = request.message, request.message.sampling.bad_words
        if message.prompt_ids is not None and not bad_words:
            self._texts_done(request, message.prompt_ids)
            return
        job = TextJob(
            key=request.key,
            model=request.model.name,
            text=None if message.messages is not None else message.prompt or "",
            messages=None if message.messages is None else [msgspec.to_builtins(m) for m in message.messages],
            tools=message.tools,
            template_args=message.template_args,
            special_tokens=message.special_tokens,
            bad_words=bad_words,
        )
        self._texts.submit(job, lambda result: self._text_result(request, result))

    def _text_result(self, request: Request, result: TextResult) -> None:
        if result.error:
            self.fail(request, Refusal(Code.INVALID_PARAM, result.error, field=result.field))
            return
        request.bad_word_ids = result.bad_word_ids
        ids = request.message.prompt_ids
        self._texts_done(request, result.ids if ids is None else ids)

    def _texts_done(self, request: Request, prompt: list[int]) -> None:
        request.prompt = prompt
        request.state = "loading"
        if request.model.card is not None and request.model.state in ("ready", "draining"):
            self._submit(request)

    # --- to the engine --------------------------------------------------------------------------

    def model_ready(self, model: Model) -> None:
        """Submit what waited for the model."""
        if model.is_default and model.card is not None:
            self._sessions.max_context = model.card.context
        for request in list(model.requests.values()):
            if request.state == "loading":
                self._submit(request)

    def _submit(self, request: Request) -> None:
        model, message = request.model, request.message
        card, prompt = model.card, request.prompt
        assert card is not None
        assert prompt is not None
        assert model.channel is not None
        try:
            request.max_tokens = check_prompt(message, prompt, card)
            request.digest = _digest(prompt, message)
            if model.suspects.get(request.digest, 0) >= POISONOUS:
                raise Refusal(Code.ENGINE_LOST, f"this request was in the engine at {POISONOUS} of its deaths; refused")
        except Refusal as refusal:
            self.fail(request, refusal)
            return
        sampling = message.sampling
        request.seed = sampling.seed if sampling.seed is not None else secrets.randbits(SEED_BITS)
        special = frozenset(card.special_ids)
        request.choices = [
            Choice(TextStream(card.pieces, special, sampling.stop, sampling.include_stop)) for _ in range(sampling.n)
        ]
        if not model.num_submitted:
            model.last_step = self._loop.clock()
        model.num_submitted += 1
        request.submitted, request.state = True, "waiting"
        model.channel.send(
            Submit(
                key=request.key,
                client=str(request.session.number),
                prompt=prompt,
                sampling=msgspec.structs.replace(
                    sampling, max_tokens=request.max_tokens, seed=request.seed, stop=(), bad_words=()
                ),
                bad_word_ids=request.bad_word_ids,
                eos_ids=card.eos_ids,
                priority=message.priority,
                arrival=request.arrival,
                deadline=request.deadline,
                queue_deadline=request.queue_deadline,
            )
        )
        self._send(request, Accepted(id=request.id, prompt_tokens=len(prompt), max_tokens=request.max_tokens))

    # --- progress and time ----------------------------------------------------------------------

    def started(self, request: Request) -> None:
        """The request runs; it no longer counts as queued."""
        if request.queued:
            request.queued = False
            self.num_queued -= 1

    def _progress(self, request: Request) -> None:
        if request.ended:
            return
        silent = self._loop.clock() - request.last_sent
        if silent >= 0.95 * PROGRESS_S:
            self.send_progress(request)
            silent = 0.0
        request.timers[-1] = self._loop.after(PROGRESS_S - silent, lambda: self._progress(request))

    def send_progress(self, request: Request) -> None:
        """Tell where the request stands, unless older news still wait to be sent."""
        request.last_sent = self._loop.clock()
        if request.session.outbox:
            return
        done, total, reason = request.done, request.total, request.reason
        if request.state == "loading":
            done, total, reason = request.model.load_done, request.model.load_total, request.model.detail
        self._send(request, Progress(id=request.id, state=request.state, done=done, total=total, reason=reason))

    def _probe(self) -> None:
        """Say something to each client that was told nothing lately: a dead one is noticed by the send."""
        now = self._loop.clock()
        for session in self._sessions.all():
            if session.requests and session.data is not None and now - session.last_sent >= PROBE_S:
                self.send_progress(next(iter(session.requests.values())))
        self._loop.after(PROBE_S / 2, self._probe)

    def _too_late(self, request: Request, late: bool = False) -> None:
        if request.ended:
            return
        if request.submitted and not late:  # the engine knows the deadline; this is for a hung one
            request.timers[0] = self._loop.after(LATE_S, lambda: self._too_late(request, True))
            return
        text = f"not finished within deadline_ms = {request.message.deadline_ms}"
        self.fail(request, Refusal(Code.DEADLINE_EXCEEDED, text, field="deadline_ms"))

    def _queued_too_long(self, request: Request, late: bool = False) -> None:
        if request.ended or not request.queued:
            return
        if request.submitted and not late:
            self._loop.after(LATE_S, lambda: self._queued_too_long(request, True))
            return
        text = f"not started within queue_timeout_ms = {request.message.queue_timeout_ms}"
        self.fail(request, Refusal(Code.DEADLINE_EXCEEDED, text, field="queue_timeout_ms"))

    # --- endings --------------------------------------------------------------------------------

    def cancel(self, session: Session, request_id: str, *, anywhere: bool = False) -> str:
        """End a request of this session, or those of this id in every session; say what was done."""
        sessions = self._sessions.all() if anywhere else [session]
        found = [s.requests[request_id] for s in sessions if request_id in s.requests]
        for request in found:
            self.cancel_request(request)
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
        reason = finishes[0].reason if finishes else "cancelled"
        self._close(request, reason)
        self._metrics.finished(reason, measured, now)
        if reason in ("stop", "length"):
            request.model.suspects.pop(request.digest, None)
        done = Done(id=request.id, reason=reason, finish=finishes, usage=request.usage, timings=measured)
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
        for timer in request.timers:
            timer.cancel()
        del self.live[request.key]
        del request.session.requests[request.id]
        model = request.model
        del model.requests[request.key]
        if request.submitted:
            model.num_submitted -= 1
            if model.channel is not None and model.card is not None and how not in ("stop", "length"):
                model.channel.send(Abort(key=request.key))
        else:
            self._texts.cancel(request.key)
        self._models.released(model)
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

    def _send(self, request: Request, reply: Accepted | Progress) -> None:
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


def _digest(prompt: list[int], message: Generate) -> bytes:
    """Name a request by all that the engine sees of it."""
    digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16)
    digest.update(msgspec.msgpack.encode(message.sampling))
    return digest.digest()
