"""Compile grammars beside the step loop, and keep the compiled ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from inferd.grammar.dialect import to_llguidance
from inferd.grammar.limits import parser_limits, readable
from inferd.grammar.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from inferd.link import Grammar

THREADS = 2
CACHED = 64
"""Compiled grammars that are kept, least recently used out first."""
CACHED_BYTES = 4 << 20
"""Of their texts together."""

Compiled = LLMatcher | str
"""A fresh matcher to copy, or why there is none."""


class Compiler:
    """Compiled grammars of one model. `start` and `matcher` are called by the step loop and never wait long."""

    def __init__(self, tokenizer: Callable[[], LLTokenizer]) -> None:
        """`tokenizer` is made at the first grammar: a model whose requests have none pays nothing."""
        self._make_tokenizer = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._cache: OrderedDict[Grammar, Future[Compiled]] = OrderedDict()

    def start(self, grammar: Grammar) -> Future[Compiled]:
        """Return the compiled grammar, now or later; an equal one that is known or under way is not made again."""
        known = self._cache.get(grammar)
        if known is not None:
            self._cache.move_to_end(grammar)
            return known
        future = self._cache[grammar] = self._submit(grammar)
        while len(self._cache) > 1 and (len(self._cache) > CACHED or self._cached_bytes > CACHED_BYTES):
            self._cache.popitem(last=False)
        return future

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _cached_bytes(self) -> int:
        return sum(len(grammar.text) for grammar in self._cache)

    def _submit(self, grammar: Grammar) -> Future[Compiled]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        return self._pool.submit(self._compile, grammar)

    def _compile(self, grammar: Grammar) -> Compiled:
        """Runs on a thread; the library lets others run meanwhile."""
        try:
            with self._lock:
                if self._tokenizer is None:
                    self._tokenizer = self._make_tokenizer()
            matcher = LLMatcher(self._tokenizer, to_llguidance(grammar), log_level=0, limits=parser_limits())
        except Exception as error:  # noqa: BLE001 - a native library may raise anything, and the request is told
            return readable(str(error) or type(error).__name__)
        return readable(matcher.get_error()) if matcher.is_error() else matcher


def fresh(compiled: LLMatcher) -> Matcher:
    """Return a matcher at the start of a compiled grammar."""
    return Matcher(compiled.deep_copy())
