"""Which tokens the grammars of a step's rows allow, as bits, made in bulk outside of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher
    from numpy.typing import NDArray

    from inferd.grammar.matcher import Matcher

ALL = -1
"""A word of the mask that allows all of its 32 tokens."""


class Constrained(NamedTuple):
    """A sequence of a step that follows a grammar."""

    matcher: Matcher
    drafts: Sequence[int]
    """Tokens it verifies; there is one mask before each and one after the last."""


class MaskMaker:
    """Makes the masks of one step after the other in memory that is used again."""

    def __init__(self, vocab_size: int, threads: int = 0) -> None:
        """`threads` 0 = as the library chooses."""
        self._words = -(-vocab_size // 32)
        self._threads = threads
        self._executor: LLExecutor | None = None
        self._bits = np.empty((0, self._words), np.int32)

    def make(self, rows: Sequence[Constrained]) -> NDArray[np.int32]:
        """Return masks int32 [sum of 1 + drafts, vocab / 32], bit i of word w for token 32 w + i.

        Valid until the next call. Rows behind a draft that its grammar forbids allow everything: they are never read,
        as the row before them cannot choose that draft.
        """
        total = sum(len(row.drafts) + 1 for row in rows)
        if total > len(self._bits):
            self._bits = np.empty((max(total, 2 * len(self._bits)), self._words), np.int32)
        bits = self._bits[:total]
        plain: list[tuple[LLMatcher, int]] = []
        drafting: list[tuple[LLMatcher, int, list[int]]] = []
        at = 0
        for row in rows:
            if row.drafts:
                bits[at : at + len(row.drafts) + 1] = ALL
                drafting.append((row.matcher.inner, at, list(row.drafts)))
            else:
                plain.append((row.matcher.inner, at))
            at += len(row.drafts) + 1
        size = bits.strides[0] if total else 0
        if plain:
            self._library.unsafe_compute_mask_ptr(plain, bits.ctypes.data, size, total)
        if drafting:
            self._library.unsafe_compute_mask_ptr_with_draft_token(drafting, bits.ctypes.data, size, total)
        return bits

    @property
    def _library(self) -> LLExecutor:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self._threads or None)
        return self._executor
