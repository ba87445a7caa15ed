"""What transformers answers to the prompts of these tests, by the path of the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from tests.equivalence import smollm2_oracle
from tests.equivalence.oracle import Greedy, greedy


class Wanted(NamedTuple):
    """A prompt and its continuation."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    leads: tuple[float, ...]
    """How far each token is before the next best, over the largest logit."""

    def agrees(self, ids: Sequence[int], rounding: float) -> bool:
        """Say whether `ids` go on like this up to the first token whose lead rounding may turn."""
        differ = [i for i, (a, b) in enumerate(zip(self.ids, ids, strict=False)) if a != b]
        return len(ids) >= len(self.ids) and (not differ or self.leads[differ[0]] <= rounding)


def of_folder(path: Path, prompts: Sequence[Sequence[int]], count: int) -> list[Wanted]:
    """Continue each prompt greedily with the model of a Hugging Face folder."""
    return [_sure(greedy(path, prompt, count)) for prompt in prompts]


def of_gguf(path: Path, prompts: Sequence[Sequence[int]], count: int) -> list[Wanted]:
    """The same for the dequantised weights of a llama GGUF file."""
    return [_sure(_greedy_gguf(path, tuple(prompt), count)) for prompt in prompts]


def _sure(answer: Greedy) -> Wanted:
    """Cut an answer where the oracle itself wavers; that must be rare."""
    sure = [answer.sure(i) for i in range(len(answer.ids))]
    count = sure.index(False) if False in sure else len(sure)
    assert count > len(sure) // 2, "choose another seed: the oracle is not sure of this prompt"
    return Wanted(answer.prompt, answer.ids[:count], tuple(answer.lead(i) for i in range(count)))


def _greedy_gguf(path: Path, prompt: tuple[int, ...], count: int) -> Greedy:
    model = _gguf_model(path)
    tokens, rows = list(prompt), []
    for _ in range(count):
        rows.append(smollm2_oracle.logits(model, tokens, 1)[-1])
        tokens.append(int(rows[-1].argmax()))
    return Greedy(prompt, tuple(tokens[len(prompt) :]), torch.stack(rows))


@cache
def _gguf_model(path: Path) -> torch.nn.Module:
    return smollm2_oracle.load(path)
