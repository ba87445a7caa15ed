"""Requests whose grammar is being compiled: they wait beside the step loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from inferd.engine.request import Sequence
    from inferd.grammar.compiler import Compiled, Compiler
    from inferd.link import Grammar

LIMIT_S = 20.0
"""Longest wait for a compiler thread. A grammar gets here only after it was compiled elsewhere within less."""
PAUSE_S = 0.005
"""How long a step without anything else to do waits for a grammar."""


class Settled(NamedTuple):
    """A request that waits no longer, and why it fails if it does."""

    request: str
    error: str


@dataclass(slots=True)
class _Waiting:
    seqs: list[Sequence]
    compiled: Future[Compiled]
    since: float


class Grammars:
    """The compiler of one model and those who wait for it."""

    def __init__(self, tokenizer: Callable[[], LLTokenizer], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._compiler: Compiler | None = None
        self._waiting: list[_Waiting] = []

    def begin(self, seqs: list[Sequence], grammar: Grammar) -> None:
        """Compile the grammar of a request."""
        if self._compiler is None:
            from inferd.grammar.compiler import Compiler  # a worker without grammars does without the library

            self._compiler = Compiler(self._tokenizer)
        self._waiting.append(_Waiting(seqs, self._compiler.start(grammar), self._clock()))

    def settled(self) -> Iterator[Settled]:
        """Take out the requests whose grammar is ready, with matchers for their sequences, or is given up."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            error = self._settle(entry)
            if error is None:
                self._waiting.append(entry)
            else:
                yield Settled(entry.seqs[0].request, error)

    def pause(self) -> None:
        """Wait a moment for one to be ready."""
        wait([entry.compiled for entry in self._waiting], timeout=PAUSE_S, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()

    def _settle(self, entry: _Waiting) -> str | None:
        if entry.compiled.done():
            compiled = entry.compiled.result()
            if isinstance(compiled, str):
                return compiled
            from inferd.grammar.compiler import fresh

            for seq in entry.seqs:
                seq.matcher = fresh(compiled)
            return ""
        late = self._clock() - entry.since > LIMIT_S
        return f"it was not compiled within {LIMIT_S:g} s" if late else None
