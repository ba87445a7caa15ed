"""What a step of an engine means for its requests: text, stop strings, the end of choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.front.errors import Refusal
from inferd.front.intake import grammar_refusal
from inferd.front.outbox import Piece
from inferd.link import Abort
from inferd_client.protocol import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferd.front.accounts import Accounts
    from inferd.front.intake import Intake
    from inferd.front.model import Model
    from inferd.front.records import Choice, Request
    from inferd.front.requests import Requests
    from inferd.front.sessions import Sessions
    from inferd.link import SeqError, SeqOutput, SeqState, StepReport
    from inferd.log import Logger
    from inferd.loop import Loop
    from inferd.metrics import Metrics
    from inferd_client.protocol import TokenLogprob


class Outputs:
    """Listener of the engines: passes output on, leaves the rest to `Requests`."""

    def __init__(
        self,
        requests: Requests,
        intake: Intake,
        sessions: Sessions,
        accounts: Accounts,
        loop: Loop,
        metrics: Metrics,
        log: Logger,
    ) -> None:
        self._requests = requests
        self._intake = intake
        self._sessions = sessions
        self._accounts = accounts
        self._loop = loop
        self._metrics = metrics
        self._log = log

    def model_ready(self, model: Model) -> None:
        self._intake.model_ready(model)

    def model_failed(self, model: Model, code: Code, why: str) -> None:
        self._requests.model_failed(model, code, why)

    def engine_lost(self, model: Model, why: str) -> None:
        self._requests.engine_lost(model, why)

    def engine_report(self, model: Model, report: StepReport) -> None:
        """Handle the one message of a step; a request that ended meanwhile is skipped."""
        now = self._loop.clock()
        self._accounts.charge(model, report.charges)
        for state in report.states:
            request = model.requests.get(state.key)
            if request is not None:
                self._state(request, state)
        for output in report.outputs:
            request = model.requests.get(output.key)
            if request is not None:
                self._output(request, output, now)
        for error in report.errors:
            request = model.requests.get(error.key)
            if request is not None:
                self._error(request, error)
        for warning in report.warnings:
            self._log.warning("engine", model=model.name, warning=warning)

    def _state(self, request: Request, state: SeqState) -> None:
        request.state, request.done, request.total, request.reason = state.state, state.done, state.total, state.reason
        if state.state in ("prefill", "decode"):
            self._requests.started(request)

    def _error(self, request: Request, error: SeqError) -> None:
        if error.code == Code.GRAMMAR_INVALID:
            self._requests.fail(request, grammar_refusal(request, error.message))
            return
        refusal = Refusal(error.code, error.message, field=error.field, limit=error.limit, retry_safe=False)
        self._requests.fail(request, refusal)

    def _output(self, request: Request, output: SeqOutput, now: float) -> None:
        choice = request.choices[output.choice]
        if choice.finish is not None:
            return  # ended here by a stop string; this was on its way
        self._note(request, choice, output)
        piece = _piece(choice, output, keep_stop=request.message.sampling.include_stop)
        if request.model.card is not None:
            piece.spelling = _spelling(piece, request.model.card.pieces)
        self._measure(choice, len(piece.ids), now)
        if choice.finish is not None and output.finish is None and request.model.channel is not None:
            request.model.channel.send(Abort(key=request.key, choice=output.choice))
        if piece.ids or piece.text or piece.finish or piece.prompt_logprobs:
            self._sessions.send_piece(request, piece)
        if not request.ended and all(c.finish is not None for c in request.choices):
            self._requests.complete(request)

    def _note(self, request: Request, choice: Choice, output: SeqOutput) -> None:
        request.state = "decode"
        self._requests.started(request)
        if output.first_scheduled is not None and request.first_scheduled is None:
            request.first_scheduled = output.first_scheduled
        if output.choice == 0:
            request.cached_tokens = output.cached_tokens
        choice.drafted, choice.accepted, choice.preemptions = output.drafted, output.accepted, output.preemptions

    def _measure(self, choice: Choice, count: int, now: float) -> None:
        for gap in choice.clock.record(now, count):
            self._metrics.record("itl", gap, now)
        if count:
            self._metrics.count("generation_tokens_total", count)


def _piece(choice: Choice, output: SeqOutput, *, keep_stop: bool) -> Piece:
    """Turn new ids into text and note how the choice ends. A stop token has no text unless it is kept."""
    silent = output.stop_token is not None and not keep_stop
    delta = choice.text.push(output.ids[:-1] if silent else output.ids)
    used, text, finish, stop = len(output.ids), delta.text, output.finish, output.stop_token
    if delta.stop is None and output.finish is not None:
        text += choice.text.finish()
    if choice.text.stop is not None:
        finish, stop = "stop", choice.text.stop
        used = delta.num_ids_used if delta.stop is not None else used
    choice.finish, choice.stop = finish, stop
    choice.num_ids += used
    return Piece(
        choice=output.choice,
        text=text,
        ids=output.ids[:used],
        logprobs=_cut(output.logprobs, used),
        prompt_logprobs=output.prompt_logprobs,
        finish=finish,
    )


def _spelling(piece: Piece, table: Sequence[bytes]) -> dict[int, bytes]:
    """Return the bytes of every token id in the log-probabilities of a piece; clients have no vocabulary."""
    entries = [entry for part in (piece.logprobs, piece.prompt_logprobs) for entry in part or () if entry is not None]
    ids = {token for entry in entries for token in (entry.token, *(other for other, _ in entry.top))}
    return {token: table[token] for token in ids if token < len(table)}


def _cut(logprobs: tuple[TokenLogprob, ...] | None, used: int) -> tuple[TokenLogprob, ...] | None:
    return None if logprobs is None else logprobs[:used]
