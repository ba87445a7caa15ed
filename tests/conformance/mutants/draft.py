"""A plain draft model that is right, and broken ones made from it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from inferd.plugin.contracts import DraftContext, DraftModel
from inferd.plugin.types import DraftSequence


class RepeatsLast(DraftModel):
    """Proposes the last token again and again."""

    def bind(self, context: DraftContext) -> None:
        self.vocab = context.spec.vocab_size

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self.one(s, min(k, s.limit)) for s in sequences]

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        return [sequence.tokens[-1]] * count


class IgnoresLimit(RepeatsLast):
    """Proposes k tokens where fewer are wanted."""

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self.one(s, k) for s in sequences]


class LeavesVocabulary(RepeatsLast):
    """Counts upwards without end."""

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        return [sequence.tokens[-1] + i for i in range(count)]


class ChangesTokens(RepeatsLast):
    """Appends its drafts to the sequence."""

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        drafts = super().one(sequence, count)
        tokens: Any = sequence.tokens
        tokens += drafts
        return drafts


class Guesses(RepeatsLast):
    """Draws tokens from an unseeded generator."""

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        return [random.randrange(self.vocab) for _ in range(count)]


class SkipsEmpty(RepeatsLast):
    """Leaves out sequences that it has nothing for."""

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self.one(s, min(k, s.limit)) for s in sequences if len(s.tokens) > 9]


class CopiesNeighbour(RepeatsLast):
    """Proposes what suits the first sequence for all."""

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self.one(sequences[0], min(k, s.limit)) for s in sequences]


class Remembers(RepeatsLast):
    """Goes on with the first token it ever saw of a key, also after `drop`."""

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        self.first = getattr(self, "first", {})
        return [self.first.setdefault(sequence.key, sequence.tokens[0])] * count


class InsistsOnKeys(RepeatsLast):
    """Raises for a key that it does not know."""

    def bind(self, context: DraftContext) -> None:
        super().bind(context)
        self.seen: dict[int, bool] = {}

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        self.seen[sequence.key] = True
        return super().one(sequence, count)

    def drop(self, key: int) -> None:
        del self.seen[key]


class NeedsHistory(RepeatsLast):
    """Looks two tokens back without looking whether they are there."""

    def one(self, sequence: DraftSequence, count: int) -> list[int]:
        return [sequence.tokens[-2]] * count


CAUGHT_BY = {
    IgnoresLimit: "limits",
    LeavesVocabulary: "valid_tokens",
    ChangesTokens: "tokens_kept",
    Guesses: "deterministic",
    SkipsEmpty: "one_list_each",
    CopiesNeighbour: "batch_invariant",
    Remembers: "drop_forgets",
    InsistsOnKeys: "unknown_keys",
    NeedsHistory: "short_histories",
}
