"""How far the output of one sequence has come in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferd.grammar.limits import readable

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Matcher:
    """Follows the output of one sequence. It lives as long as the sequence, preempted or not."""

    __slots__ = ("complete", "inner")

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner
        self.complete = False
        """The grammar is at its end: nothing may follow."""

    @property
    def error(self) -> str:
        """Why the grammar cannot go on; empty while it can. What it took too much work to find counts too."""
        return readable(self.inner.get_error()) if self.inner.is_error() else ""

    def accept(self, ids: Sequence[int]) -> int:
        """Take new output and return how many of the ids belong to it: the grammar may end before the last."""
        for count, token in enumerate(ids, 1):
            if not self.inner.consume_token(token) or self.inner.is_stopped():
                self.complete = not self.inner.is_error()
                return count
        return len(ids)

    def allowed(self, drafts: Sequence[int]) -> int:
        """Return how many leading draft tokens the grammar allows."""
        return self.inner.validate_tokens(list(drafts))
