"""The way of a request into an engine: checked, tokenized, held until its model is loaded, submitted."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from typing import TYPE_CHECKING

import msgspec

from inferd.front.detok import TextStream
from inferd.front.errors import Refusal
from inferd.front.model import POISONOUS
from inferd.front.records import Choice, Request, Session
from inferd.front.validate import check_generate, check_prompt
from inferd.grammar.source import grammar_of, without_grammar
from inferd.link import Submit, TextJob, TextResult
from inferd_client.protocol import Accepted, Code

if TYPE_CHECKING:
    from inferd.config.schema import Daemon
    from inferd.front.grammars import Grammars
    from inferd.front.model import Model
    from inferd.front.models import Models
    from inferd.front.requests import Requests
    from inferd.front.sessions import Sessions
    from inferd.front.texts import Texts
    from inferd.loop import Loop
    from inferd.metrics import Metrics
    from inferd_client.protocol import Generate

SEED_BITS = 62


class Intake:
    """Takes `generate` messages."""

    def __init__(
        self,
        settings: Daemon,
        requests: Requests,
        sessions: Sessions,
        models: Models,
        texts: Texts,
        grammars: Grammars,
        loop: Loop,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._sessions = sessions
        self._models = models
        self._texts = texts
        self._grammars = grammars
        self._loop = loop
        self._metrics = metrics

    def accept(self, session: Session, message: Generate) -> None:
        """Take a request on its way. Raises Refusal."""
        if message.id in session.requests:
            raise Refusal(Code.DUPLICATE_REQUEST, f"request {message.id} is not finished yet", field="id")
        self._requests.refuse_if_draining()
        check_generate(message)
        self._check_room(session)
        model = self._models.require(message.model)
        request = self._requests.open(session, message, model)
        if message.keep_alive_s is not None:
            model.keep_alive_s = message.keep_alive_s
        if session.early.take(message.id, self._loop.clock()):
            self._requests.cancel_request(request)
        else:
            self._begin_grammar(request)

    def _check_room(self, session: Session) -> None:
        full = None
        if self._requests.num_queued >= self._settings.max_queue:
            full = (f"{self._requests.num_queued} requests wait", "daemon.max_queue", self._settings.max_queue)
        elif len(session.requests) >= self._settings.max_client_requests:
            mine, limit = len(session.requests), self._settings.max_client_requests
            full = (f"this client has {mine} unfinished requests", "daemon.max_client_requests", limit)
        if full is not None:
            raise Refusal(
                Code.OVERLOADED,
                f"{full[0]}, the limit ({full[1]})",
                limit=full[2],
                retry_after_ms=self._metrics.retry_after_ms(self._requests.num_queued, self._loop.clock()),
                retry_safe=True,
            )

    # --- grammar ---------------------------------------------------------------------------------

    def _begin_grammar(self, request: Request) -> None:
        """Have a grammar tried before anything is done for its request."""
        grammar = request.grammar = grammar_of(request.message.sampling)
        if grammar is None:
            self._begin_text(request)
            return
        request.state, request.reason = "waiting", "grammar"
        self._grammars.check(request.key, request.session.number, grammar, lambda why: self._grammar_done(request, why))

    def _grammar_done(self, request: Request, why: str) -> None:
        if request.ended:
            return
        if why:
            self._requests.fail(request, grammar_refusal(request, why))
            return
        request.state, request.reason = "text", ""
        self._begin_text(request)

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
        self._texts.submit(job, request.session.number, lambda result: self._text_result(request, result))

    def _text_result(self, request: Request, result: TextResult) -> None:
        if result.error:
            self._requests.fail(request, Refusal(Code.INVALID_PARAM, result.error, field=result.field))
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
                text = (
                    f"refused: this request was in the engine at {POISONOUS} of its deaths (last: {model.last_death})"
                )
                raise Refusal(Code.ENGINE_LOST, text)
        except Refusal as refusal:
            self._requests.fail(request, refusal)
            return
        sampling = message.sampling
        request.seed = sampling.seed if sampling.seed is not None else secrets.randbits(SEED_BITS)
        special = frozenset(card.special_ids)
        stops = (sampling.stop, sampling.include_stop, sampling.min_tokens)
        request.choices = [Choice(TextStream(card.pieces, special, *stops)) for _ in range(sampling.n)]
        if not model.num_submitted:
            model.last_step, model.paused_s = self._loop.clock(), self._loop.paused_s
        model.num_submitted += 1
        request.submitted, request.state = True, "waiting"
        self._metrics.count("prompt_tokens_total", len(prompt))
        model.channel.send(
            Submit(
                key=request.key,
                client=str(request.session.number),
                prompt=prompt,
                sampling=msgspec.structs.replace(
                    without_grammar(sampling), max_tokens=request.max_tokens, seed=request.seed, stop=(), bad_words=()
                ),
                grammar=request.grammar,
                bad_word_ids=request.bad_word_ids,
                eos_ids=card.eos_ids,
                priority=message.priority,
                arrival=request.arrival,
                deadline=request.deadline,
                queue_deadline=request.queue_deadline,
            )
        )
        self._requests.send(request, Accepted(id=request.id, prompt_tokens=len(prompt), max_tokens=request.max_tokens))


def grammar_refusal(request: Request, why: str) -> Refusal:
    """Return the error of a request whose grammar cannot be used."""
    kind = request.grammar.kind if request.grammar is not None else "grammar"
    return Refusal(Code.GRAMMAR_INVALID, f"{kind}: {why}", field=f"sampling.{kind}")


def _digest(prompt: list[int], message: Generate) -> bytes:
    """Name a request by all that the engine sees of it but its seed, which differs from try to try."""
    digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16)
    digest.update(msgspec.msgpack.encode(msgspec.structs.replace(message.sampling, seed=None)))
    return digest.digest()
