"""The text side of one model: render chats, tokenize, find the ids of forbidden words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferd.load.vocab import Vocabulary
from inferd.load.vocab_templates import read_template
from inferd.text.chat import check_arguments, template_messages
from inferd.text.errors import TextError
from inferd.text.guard import Guard
from inferd.text.template import ChatTemplate, RenderLimits


class Prompt(NamedTuple):
    text: str
    ids: list[int]


class TextModel:
    """One vocabulary and its templates, compiled when first used."""

    def __init__(self, vocabulary: Vocabulary, *, template_path: str = "", limits: RenderLimits | None = None) -> None:
        self.vocabulary = vocabulary
        self._override = read_template(Path(template_path)) if template_path else None
        self._limits = limits or RenderLimits()
        self._compiled: dict[str, ChatTemplate] = {}
        self._guard = Guard(vocabulary)

    @property
    def has_template(self) -> bool:
        return self._override is not None or bool(self.vocabulary.templates)

    def tokenize(self, text: str, *, add_bos: bool, special_tokens: bool) -> list[int]:
        """Return the ids of raw text; empty text without BOS has none. Raises TextError."""
        _check_unicode(text, "prompt")
        return self.vocabulary.encode(text, special_tokens=special_tokens, add_bos=add_bos)

    def render(
        self, messages: Sequence[Any], tools: Sequence[Any] | None = None, arguments: Mapping[str, Any] | None = None
    ) -> Prompt:
        """Return the prompt of a chat. The template holds all special tokens: no BOS is added. Raises TextError."""
        arguments = arguments or {}
        check_arguments(arguments)
        template = self._template(bool(tools))
        if tools and not template.knows_tools:
            raise TextError("the chat template of this model takes no tools", "tools")
        given = {
            "messages": template_messages(messages, tool_calls=template.knows_tool_calls),
            "tools": list(tools) if tools else None,
            **arguments,
        }
        mark = self._guard.mark_for(given, template.source)
        defaults = {**self.vocabulary.names, "documents": None, "add_generation_prompt": True}
        marked = template.render(defaults | self._guard.protect(given, mark))
        _check_unicode(marked, "messages")
        return Prompt(marked.replace(mark, ""), self._guard.encode(marked, mark))

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the id sequences that write each word, at the start of a text and after a space."""
        found: list[tuple[int, ...]] = []
        for word in words:
            _check_unicode(word, "bad_words")
            bare = word.lstrip(" ") or word
            for spelled in (bare, " " + bare):
                ids = tuple(self.vocabulary.encode(spelled))
                if ids and not any(ids[-len(other) :] == other for other in found):
                    found.append(ids)
        return tuple(found)

    def _template(self, tools: bool) -> ChatTemplate:
        source = self._override if self._override is not None else self.vocabulary.template_for(tools=tools)
        if source is None:
            raise TextError(self._no_template(), "messages")
        if source not in self._compiled:
            self._compiled[source] = ChatTemplate(source, self._limits)
        return self._compiled[source]

    def _no_template(self) -> str:
        names = ", ".join(sorted(self.vocabulary.templates))
        if names:
            return f"this model has no default chat template, only {names}; set chat_template in its configuration"
        return "this model has no chat template: send a prompt, or set chat_template in its configuration"


def _check_unicode(text: str, field: str) -> None:
    """Refuse what has no UTF-8 form. Every other character, NUL included, is text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TextError(f"character {error.start} is a lone surrogate (U+{code:04X})", field) from None
