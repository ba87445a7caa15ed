"""The calls of the data socket: generate, tokenize, render."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from inferd.front.budget import weigh
from inferd.front.errors import Refusal
from inferd.front.requests import error_of
from inferd.front.validate import check_messages, check_names
from inferd.link import TextJob, TextResult
from inferd_client.protocol import Code, Generate, Render, Rendered, Tokenize, Tokenized

if TYPE_CHECKING:
    from inferd.front.budget import ByteBudget
    from inferd.front.catalog import Catalog
    from inferd.front.intake import Intake
    from inferd.front.models import Models
    from inferd.front.records import Session
    from inferd.front.sessions import Sessions
    from inferd.front.texts import Texts

MAX_UNLOADED = 4
"""Models without an engine whose vocabulary stays open, each in a text process of its own."""
MAX_TEXT_CALLS = 1024
"""Tokenize and render calls that may wait for the text process."""


class DataCalls:
    """Handler of every message of the data socket but hello and ping."""

    def __init__(
        self,
        sessions: Sessions,
        intake: Intake,
        models: Models,
        texts: Texts,
        catalog: Catalog,
        budget: ByteBudget,
    ) -> None:
        self._sessions = sessions
        self._budget = budget
        self._intake = intake
        self._models = models
        self._texts = texts
        self._catalog = catalog
        self._unloaded: dict[str, None] = {}
        """Models opened for text alone, least recently used first."""
        self._numbers = count(1)
        self._pending = 0

    def handle(self, session: Session, message: Generate | Tokenize | Render) -> None:
        """Raises Refusal."""
        if isinstance(message, Generate):
            self._intake.accept(session, message)
        else:
            self._text_call(session, message)

    def _text_call(self, session: Session, message: Tokenize | Render) -> None:
        """Ask the text process; the model's engine need not be loaded for it."""
        check_names(message)
        if isinstance(message, Render):
            check_messages(message)
        if self._pending >= MAX_TEXT_CALLS:
            raise Refusal(Code.OVERLOADED, f"{self._pending} text calls wait", retry_after_ms=500, retry_safe=True)
        model = self._open_text(message.model)
        weight = weigh(message)
        self._budget.take(weight)
        self._pending += 1
        job = _job(f"call.{next(self._numbers)}", model, message)
        self._texts.submit(job, session.number, lambda result: self._answer(session, message, result, weight))

    def _open_text(self, name: str) -> str:
        """Make the vocabulary of a model known to the text process; the engine stays as it is. Raises Refusal."""
        name = name or self._models.default
        model = self._models.get(name)
        if model is not None:
            return model.name
        try:
            found = self._catalog.resolve(name)
        except ValueError as error:
            raise Refusal(Code.UNKNOWN_MODEL, str(error), field="model") from None
        self._unloaded.pop(found.name, None)
        self._unloaded[found.name] = None
        self._texts.open(found.name, found.path, self._models.chat_template(found.name))
        while len(self._unloaded) > MAX_UNLOADED:
            oldest = next(iter(self._unloaded))
            del self._unloaded[oldest]
            if self._models.get(oldest) is None:
                self._texts.close_model(oldest)
        return found.name

    def _answer(self, session: Session, message: Tokenize | Render, result: TextResult, weight: int) -> None:
        self._pending -= 1
        self._budget.give(weight)
        if result.error:
            refusal = Refusal(Code.INVALID_PARAM, result.error, field=result.field)
            self._sessions.send(session, error_of(refusal, message.id))
        elif isinstance(message, Tokenize):
            self._sessions.send(session, Tokenized(id=message.id, ids=result.ids))
        else:
            self._sessions.send(session, Rendered(id=message.id, text=result.text or "", ids=result.ids))


def _job(key: str, model: str, message: Tokenize | Render) -> TextJob:
    if isinstance(message, Tokenize):
        return TextJob(
            key=key,
            model=model,
            text=message.text,
            add_bos=message.add_bos,
            special_tokens=message.special_tokens,
        )
    return TextJob(
        key=key,
        model=model,
        messages=[msgspec.to_builtins(m) for m in message.messages],
        tools=message.tools,
        template_args=message.template_args,
    )
