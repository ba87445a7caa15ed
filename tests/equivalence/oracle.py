"""Greedy decoding by transformers (batch 1, no cache, float32, eager), and the comparison with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from tests.equivalence.rig import Row
from tests.model.oracle import hf_logits

TOLERANCE = 1e-5
"""Of max|logit|."""


class Greedy(NamedTuple):
    """The oracle's answer to one prompt."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logits: torch.Tensor
    """[len(ids), vocab]: row i chose ids[i]."""

    def sure(self, index: int, tolerance: float = TOLERANCE) -> bool:
        """The two best tokens are further apart than ten times what the logits may err."""
        return self.lead(index) > 10 * tolerance

    def lead(self, index: int) -> float:
        """Return the distance of the two best tokens over the largest logit."""
        best = self.logits[index].topk(2).values
        return float((best[0] - best[1]) / self.logits[index].abs().max())


def greedy(path: Path, prompt: Sequence[int], count: int) -> Greedy:
    """Decode `count` tokens, the whole sequence anew for each."""
    tokens, rows = list(prompt), []
    for _ in range(count):
        rows.append(hf_logits(path, tokens)[-1])
        tokens.append(int(rows[-1].argmax()))
    return Greedy(tuple(prompt), tuple(tokens[len(prompt) :]), torch.stack(rows))


@dataclass
class Tally:
    """Positions over many runs: how many were compared, and how many a near-tie kept from it."""

    compared: int = 0
    skipped: int = 0
    worst: float = 0.0
    """Largest logit difference over max|logit|."""

    def ids(self, want: Greedy, got: Sequence[int], where: object = "") -> None:
        """Hold ids to the oracle's up to a difference where the oracle itself was not sure."""
        assert len(got) == len(want.ids), where
        for index, (mine, theirs) in enumerate(zip(got, want.ids, strict=True)):
            if mine != theirs:
                assert not want.sure(index), f"{where}: token {index} is {mine}, not {theirs} (got {list(got)})"
                self.skipped += len(want.ids) - index
                return
            self.compared += 1

    def logits(self, want: Greedy, rows: Iterable[Row], where: object = "") -> int:
        """Hold the logits of rows whose context is the oracle's to its logits; return the positions met."""
        met = set()
        whole = want.prompt + want.ids
        for row in rows:
            index = len(row.context) - len(want.prompt)
            if index >= len(want.ids) or row.context != whole[: len(row.context)]:
                continue
            error = relative_error(row.logits, want.logits[index])
            assert error <= TOLERANCE, f"{where}: logits of token {index} differ by {error} of the largest"
            self.worst = max(self.worst, error)
            met.add(index)
        return len(met)

    def assert_few_skipped(self) -> None:
        assert self.skipped < 0.02 * (self.compared + self.skipped), self


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest difference over the largest of `want`; infinite for NaN."""
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got - want).abs().max() / want.abs().max())
