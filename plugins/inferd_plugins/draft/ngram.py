"""Prompt lookup: what followed the last occurrence of the latest tokens is proposed again.

After "Prompt Lookup Decoding" (Saxena, 2023). Costs no model; pays where the output repeats its
prompt or itself (summaries, code edits, tables) and does nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferd.plugin.contracts import DraftContext, DraftModel
from inferd.plugin.types import DraftSequence

_TOKEN_BITS = 32


class NgramOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    min_n: int = 2
    """Shortest run of latest tokens that must occur earlier."""
    max_n: int = 5
    """Longest run compared; longer matches are not preferred any further."""
    window: int = 4096
    """Tokens of a prompt that are indexed, counted from its end."""
    candidates: int = 8
    """Earlier occurrences compared for the longest match, latest first."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            raise ValueError(f"1 <= min_n <= max_n is needed, got min_n {self.min_n} and max_n {self.max_n}")
        if self.window < 1 or self.candidates < 1:
            raise ValueError(f"window {self.window} and candidates {self.candidates} must be at least 1")


class _Index:
    """Where each n-gram of one sequence ended last; older occurrences are chained."""

    __slots__ = ("_base", "_gram", "_last", "_mask", "_n", "_previous", "length")

    def __init__(self, n: int, start: int) -> None:
        self._n = n
        self._mask = (1 << _TOKEN_BITS * n) - 1
        self._base = start
        self._gram = 0
        self._last: dict[int, int] = {}
        self._previous: list[int] = []
        self.length = start

    def extend(self, tokens: Sequence[int]) -> int:
        """Index the tokens not seen yet; return the latest earlier end of the last n-gram, or -1."""
        gram, mask, last, previous = self._gram, self._mask, self._last, self._previous
        first = self._base + self._n
        for end in range(self.length + 1, len(tokens) + 1):
            gram = (gram << _TOKEN_BITS | tokens[end - 1]) & mask
            if end >= first:
                previous.append(last.get(gram, -1))
                last[gram] = end
        self._gram = gram
        self.length = len(tokens)
        return self.before(self.length)

    def before(self, end: int) -> int:
        """Return where the n-gram that ends at `end` ended before, or -1."""
        index = end - self._base - self._n
        return self._previous[index] if index >= 0 else -1


class NgramDraft(DraftModel):
    """Prompt lookup with an index that grows by the new tokens of each step."""

    def __init__(self, options: NgramOptions | None = None) -> None:
        super().__init__(options)
        self._options = options or NgramOptions()
        self._indexes: dict[int, _Index] = {}

    def bind(self, context: DraftContext) -> None:
        """Needs nothing of the engine."""

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self._propose(sequence, min(k, sequence.limit)) for sequence in sequences]

    def _propose(self, sequence: DraftSequence, count: int) -> list[int]:
        tokens = sequence.tokens
        index = self._indexes.get(sequence.key)
        if index is None or index.length > len(tokens):
            index = _Index(self._options.min_n, max(0, len(tokens) - self._options.window))
            self._indexes[sequence.key] = index
        end = index.extend(tokens)
        if end < 0 or count <= 0:
            return []
        return _copy(tokens, self._longest(tokens, index, end), count)

    def _longest(self, tokens: Sequence[int], index: _Index, end: int) -> int:
        """Return the end of the earlier occurrence with the longest match, the latest of equals."""
        best, best_length = end, self._options.min_n
        for _ in range(self._options.candidates):
            length = self._match_length(tokens, end)
            if length > best_length:
                best, best_length = end, length
            end = index.before(end)
            if end < 0 or best_length >= self._options.max_n:
                break
        return best

    def _match_length(self, tokens: Sequence[int], end: int) -> int:
        last = len(tokens)
        length = self._options.min_n
        longest = min(self._options.max_n, end)
        while length < longest and tokens[end - 1 - length] == tokens[last - 1 - length]:
            length += 1
        return length

    def drop(self, key: int) -> None:
        self._indexes.pop(key, None)


def _copy(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """Copy `count` tokens from `start`; past the end the copy itself is copied (a period goes on)."""
    found = list(tokens[start : start + count])
    period = len(tokens) - start
    while len(found) < count:
        found.append(found[len(found) - period])
    return found
