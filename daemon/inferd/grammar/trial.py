"""Try a grammar: compile it once under the bounds, where nothing is lost when that goes wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer

from inferd.grammar.dialect import to_llguidance
from inferd.grammar.limits import parser_limits, readable

if TYPE_CHECKING:
    from inferd.link import Grammar

STACK_BYTES = 1 << 20
"""Less than any thread of a worker has, so that what would overflow there does so here."""


def try_grammar(grammar: Grammar) -> str:
    """Return why a grammar cannot be used, empty when it can.

    It is compiled and makes its first mask over single bytes. Only what names tokens of the model is left to
    the worker, which knows them.
    """
    found: list[str] = []
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=lambda: found.append(_try(grammar)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return found[0] if found else "it could not be compiled"


def _try(grammar: Grammar) -> str:
    try:
        text = to_llguidance(grammar)
        limits = parser_limits()
        failed, messages = LLMatcher.validate_grammar_with_warnings(text, limits=limits)
        if failed:
            return readable(messages[0])
        if any("no tokenizer" in message for message in messages):
            return ""
        matcher = LLMatcher(LLTokenizer("byte"), text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return readable(matcher.get_error()) if matcher.is_error() else ""
    except Exception as error:  # noqa: BLE001 - a native library may raise anything, and the request is told
        return readable(str(error) or type(error).__name__)
