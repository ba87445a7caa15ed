"""Builds the result of one call from its answers and watches its time-outs. No I/O: both faces feed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from . import protocol as p
from .call import Item
from .errors import BadFrame, InferdError, RequestTimeout
from .options import Timeouts
from .results import Choice, Completion, Piece

R = TypeVar("R")


class Patience:
    """The time-outs of one call, from its start."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._start = time.monotonic()
        self._has_output = False

    def _deadlines(self) -> list[tuple[float, str, float]]:
        first = None if self._has_output else self._timeouts.first_token
        limits = (("first_token", first), ("total", self._timeouts.total))
        return [(self._start + seconds, kind, seconds) for kind, seconds in limits if seconds is not None]

    def remaining(self) -> float | None:
        """Seconds that may be waited now for the next message; None = without end."""
        now = time.monotonic()
        waits = [deadline - now for deadline, _, _ in self._deadlines()]
        if self._timeouts.idle is not None:
            waits.append(self._timeouts.idle)
        return max(0.0, min(waits)) if waits else None

    def ran_out(self) -> RequestTimeout:
        """Return the exception for the wait that just ended in vain."""
        now = time.monotonic()
        for deadline, kind, seconds in self._deadlines():
            if now >= deadline:
                return RequestTimeout(kind, seconds)
        return RequestTimeout("idle", self._timeouts.idle or 0.0)

    def check(self, at: float, item: Item) -> None:
        """Note a message that came in at `at`. Raises RequestTimeout when that was too late."""
        for deadline, kind, seconds in self._deadlines():
            if at > deadline:
                raise RequestTimeout(kind, seconds)
        if isinstance(item, p.Tokens) and (item.ids or item.text):
            self._has_output = True


class Assembly:
    """A generation as it grows."""

    def __init__(self, request: p.Generate, on_progress: Callable[[p.Progress], object] | None = None) -> None:
        logprobs = request.sampling.logprobs is not None
        choices = [Choice(i, logprobs=[] if logprobs else None) for i in range(request.sampling.n)]
        self.completion = Completion(request.id, choices)
        self.progress: p.Progress | None = None
        self.done = False
        self._on_progress = on_progress

    def take(self, item: Item) -> Piece | None:
        """Add one answer; return the piece of output it is, if it is one. Raises the error it may be."""
        if isinstance(item, InferdError):
            self.done = True
            raise item
        if isinstance(item, p.Tokens):
            return self._tokens(item)
        if isinstance(item, p.Done):
            self._done(item)
        elif isinstance(item, p.Accepted):
            self.completion.prompt_tokens = item.prompt_tokens
            self.completion.max_tokens = item.max_tokens
        elif isinstance(item, p.Progress):
            self.progress = item
            if self._on_progress is not None:
                self._on_progress(item)
        return None

    def explain(self, error: InferdError) -> InferdError:
        """Return `error` with what had been produced before it."""
        if any(choice.ids or choice.text for choice in self.completion.choices):
            error.partial = self.completion
        return error

    def closed(self) -> None:
        """Note that the caller wants no more."""
        self.done = True
        for choice in self.completion.choices:
            choice.finish = choice.finish or "cancelled"

    def _tokens(self, item: p.Tokens) -> Piece:
        choice = self.completion.choices[item.choice]
        choice.text += item.text
        choice.ids.extend(item.ids)
        choice.finish = item.finish
        if item.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + list(item.logprobs)
        if item.prompt_logprobs is not None:
            self.completion.prompt_logprobs = item.prompt_logprobs
        self.completion.spelling.update(item.spelling)
        return Piece(item.text, item.ids, item.choice, item.logprobs, item.prompt_logprobs, item.finish, item.spelling)

    def _done(self, item: p.Done) -> None:
        self.done = True
        self.completion.usage, self.completion.timings, self.completion.cost = item.usage, item.timings, item.cost
        self.completion.prompt_tokens = item.usage.prompt_tokens
        for finish in item.finish:
            choice = self.completion.choices[finish.choice]
            choice.finish, choice.stop, choice.seed = finish.reason, finish.stop, finish.seed


def settle(item: Item, kind: type[R], on_progress: Callable[[p.Progress], object] | None = None) -> R | None:
    """Return the answer of a plain call, None for a progress report. Raises the error that `item` may be."""
    if isinstance(item, InferdError):
        raise item
    if isinstance(item, p.Progress | p.Accepted):
        if on_progress is not None and isinstance(item, p.Progress):
            on_progress(item)
        return None
    if not isinstance(item, kind):
        raise BadFrame(f"the daemon answered with {type(item).__name__}, not {kind.__name__}")
    return item
