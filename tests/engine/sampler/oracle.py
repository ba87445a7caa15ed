"""One row of sampling in float64 and Python integers: what the vectorised sampler must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from inferd_client.protocol import SamplingParams

_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1


def noise(seed: int, position: int, token: int) -> float:
    """Gumbel noise of a token, from the definition in noise.py."""
    mixed = _splitmix((_splitmix(seed) + position * 0x9E3779B97F4A7C15) & _M64)
    x = _fmix(((token * 0x9E3779B1) & _M32) ^ (mixed & _M32))
    x = _fmix((x + (mixed >> 32)) & _M32)
    uniform = min(((x & 0x7FFFFFFF) + 0.5) / 2**31, 1 - 2**-24)
    return -math.log(-math.log1p(-uniform))


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return x ^ (x >> 31)


def _fmix(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _M32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _M32
    return x ^ (x >> 16)


@dataclass
class Row:
    """Everything that decides one token."""

    logits: np.ndarray
    sampling: SamplingParams
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    seed: int = 0
    eos_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = field(default_factory=tuple)

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)

    def edited(self) -> np.ndarray:
        """Logits after the request's own rules, before the temperature."""
        s, x = self.sampling, self.logits.astype(np.float64).copy()
        if s.allowed_token_ids is not None:
            x[[i for i in range(len(x)) if i not in s.allowed_token_ids]] = -np.inf
        for word in self.bad_words:
            prefix = list(word[:-1])
            if not prefix or list(self.output)[-len(prefix) :] == prefix:
                x[word[-1]] = -np.inf
        if len(self.output) < s.min_tokens:
            x[list({*s.stop_token_ids, *(() if s.ignore_eos else self.eos_ids)})] = -np.inf
        for token, bias in s.logit_bias.items():
            x[token] += bias
        for token in {*self.prompt, *self.output}:
            x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
        for token in set(self.output):
            x[token] -= s.frequency_penalty * list(self.output).count(token) + s.presence_penalty
        return x

    def filtered(self) -> np.ndarray:
        """Logits over the temperature, -inf outside the support."""
        s = self.sampling
        x = self.edited() / s.temperature
        if s.min_p > 0:
            x[x < x.max() + math.log(s.min_p)] = -np.inf
        if s.top_k > 0:
            x[x < np.sort(x)[::-1][min(s.top_k, len(x)) - 1]] = -np.inf
        if s.top_p < 1:
            order = np.lexsort((np.arange(len(x)), -x))
            probs = softmax(x)[order]
            before = np.concatenate(([0.0], np.cumsum(probs)[:-1]))
            x[order[before >= s.top_p]] = -np.inf
        return x

    def token(self) -> tuple[int, float]:
        """The token, and by how much it wins over the next."""
        if self.sampling.temperature == 0:
            scores = self.edited()
        else:
            scores = self.filtered()
            scores = scores + [noise(self.seed, self.position, i) for i in range(len(scores))]
        best, second = np.sort(scores)[::-1][:2]
        return int(np.argmax(scores)), float(best - second)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()
