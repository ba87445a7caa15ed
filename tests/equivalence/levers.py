"""Mixes of levers, and which paths a mix must be seen to take."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd.plugin.types import DraftOutcome, DraftSequence
from tests.equivalence.models import LENGTHS, NEW_TOKENS, Model
from tests.equivalence.rig import BLOCK_SIZE, CONTEXT, Rig, build

ENOUGH = -(-(max(LENGTHS) + NEW_TOKENS) // BLOCK_SIZE)
"""Blocks of the longest sequence."""
LARGE = 64


@dataclass(frozen=True)
class Mix:
    kv: str = "paged"
    prefix_cache: bool = True
    chunk: int = CONTEXT
    blocks: int = LARGE
    batch: int = 6
    draft: str = "none"
    """none, ngram, or k1 to k5: a draft model that knows the answer and errs at times."""
    attention: str = "torch"
    batching: str = "continuous"
    expand_gqa: bool = False
    overlap: bool = False
    """Steps are planned and started before the tokens of the last are known."""

    @property
    def verifies(self) -> bool:
        return self.draft != "none" and self.kv != "recompute"

    @property
    def caches(self) -> bool:
        return self.prefix_cache and self.kv == "paged"

    @property
    def follows(self) -> bool:
        return self.overlap and self.draft == "none" and self.kv != "recompute"

    @property
    def must_preempt(self) -> bool:
        """Six sequences over the blocks of one: growing tables meet, whatever admission keeps free."""
        return (self.kv, self.blocks, self.batch, self.batching) == ("paged", ENOUGH, 6, "continuous")


GRID = [
    Mix(kv, cache, chunk, blocks, batch, draft, attention, batching, expand)
    for (kv, cache), chunk, blocks, batch, draft, attention, batching, expand in itertools.product(
        (("paged", True), ("paged", False), ("contiguous", False), ("recompute", False)),
        (1, 3, 4, CONTEXT),
        (ENOUGH, ENOUGH + 4, LARGE),
        (1, 2, 6),
        ("none", "ngram", "k1", "k2", "k3", "k4", "k5"),
        ("torch", "reference"),
        ("continuous", "static"),
        (False, True),
    )
    if kv != "recompute" or draft in ("none", "ngram")
]


class Knowing:
    """A draft model that proposes the known answer of each prompt, each token wrong with some chance."""

    active = True

    def __init__(self, answers: Sequence[Sequence[int]], wrong: float = 0.3, seed: int = 0) -> None:
        """`answers` are whole sequences, prompt and output."""
        self._answers = [list(answer) for answer in answers]
        self._wrong = wrong
        self._rng = random.Random(seed)
        self.outcomes: list[DraftOutcome] = []

    def propose(self, sequences: Sequence[DraftSequence], k: int) -> list[list[int]]:
        return [self._guess(list(seq.tokens), min(k, seq.limit)) for seq in sequences]

    def _guess(self, tokens: list[int], count: int) -> list[int]:
        known = next((a for a in self._answers if a[: len(tokens)] == tokens), tokens)
        guess = known[len(tokens) : len(tokens) + count]
        return [(token + 1) % 290 if self._rng.random() < self._wrong else token for token in guess]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        self.outcomes += outcomes

    def drop(self, key: int) -> None:
        """Keeps nothing of a sequence."""


def build_mix(model: Model, mix: Mix, **engine: Any) -> Rig:
    """Load the model with one mix of levers, and further engine settings."""
    drafting = mix.draft != "none"
    return rigged(
        model.path,
        mix,
        Knowing([g.prompt + g.ids for g in model.oracle]) if mix.draft.startswith("k") else None,
        plugins={"draft": "ngram"} if drafting else {},
        draft={"min_n": 1} if drafting else None,
        max_draft=int(mix.draft[1:]) if mix.draft.startswith("k") else 4,
        **engine,
    )


def rigged(path: Path, mix: Mix, drafter: Any, *, plugins: dict[str, str], **options: Any) -> Rig:
    rig = build(
        path,
        blocks=mix.blocks,
        chunk=mix.chunk,
        batch=mix.batch,
        plugins={"kv": mix.kv, "attention": mix.attention} | plugins,
        prefix_cache=mix.prefix_cache,
        batching=mix.batching,
        expand_gqa=mix.expand_gqa,
        overlap="on" if mix.overlap else "off",
        **options,
    )
    if drafter is not None:
        rig.engine.drafter = drafter
    return rig
