"""What the text process does for the front: open models, do jobs."""

from __future__ import annotations

import logging

from inferd.link import TextJob, TextOpen, TextReady, TextResult
from inferd.load.errors import LoadError
from inferd.load.vocab import open_vocabulary
from inferd.text.errors import TextError
from inferd.text.model import TextModel
from inferd.text.template import RenderLimits

log = logging.getLogger(__name__)


class TextService:
    """The open models by name (the front opens one). Every message has one answer, whatever goes wrong."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._models: dict[str, TextModel] = {}

    def open(self, message: TextOpen) -> TextReady:
        try:
            vocabulary = open_vocabulary(message.path)
            model = TextModel(vocabulary, template_path=message.chat_template, limits=self._limits)
        except LoadError as error:
            return TextReady(model=message.model, error=str(error))
        except Exception as error:
            log.exception("opening the vocabulary of %s failed", message.model)
            return TextReady(model=message.model, error=f"{message.path}: {type(error).__name__}: {error}")
        self._models[message.model] = model
        return TextReady(model=message.model, has_template=model.has_template)

    def do(self, job: TextJob) -> TextResult:
        try:
            return self._answer(job)
        except TextError as error:
            return TextResult(key=job.key, error=str(error), field=error.field)
        except Exception as error:
            log.exception("text job %s failed", job.key)
            return TextResult(key=job.key, error=f"{type(error).__name__}: {error}")

    def _answer(self, job: TextJob) -> TextResult:
        model = self._models.get(job.model)
        if model is None:
            raise TextError(f"model {job.model!r} is not open", "model")
        bad_words = model.bad_words(job.bad_words)
        if job.messages is not None:
            prompt = model.render(job.messages, job.tools, job.template_args)
            return TextResult(key=job.key, ids=prompt.ids, text=prompt.text, bad_word_ids=bad_words)
        ids = model.tokenize(job.text or "", add_bos=job.add_bos, special_tokens=job.special_tokens)
        return TextResult(key=job.key, ids=ids, bad_word_ids=bad_words)
