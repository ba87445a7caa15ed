"""How many prompt tokens a step may take beside those who decode, from what steps cost so far. No clock of its own."""

from __future__ import annotations

LEAST_TOKENS = 32
"""Of a chunk: fewer would cost the prompt more in steps than they save the others."""
GRAIN = 8
"""Chunks are multiples of so many tokens."""
STRETCH = 3
"""A step may take so many times its room where that ends a prompt, for which a remainder would be a step more."""
WEIGHT = 0.2
"""Of a new observation in a running mean."""
SPIKE = 4.0
"""An observation counts as at most so many times the mean: a step that the system held up says little."""


class Pace:
    """Running means of a decode step, by its rows, and of a prompt token.

    Everybody who decodes waits for the prompt tokens of a step: a chunk of 512 can take as long as fifty steps without.
    The bound is on the whole step, so a slow model or long context shrinks the chunks, and a fast one does not. Where
    decoding alone takes most of it, prompts still get as much time as decoding: a full batch must not starve newcomers.
    """

    __slots__ = ("_decode_s", "_limit_s", "token_s")

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: how long a step with decoding rows should take; 0 = no bound."""
        self._limit_s = limit_s
        self._decode_s: dict[int, float] = {}
        """Seconds of a step without prompt tokens, by the bits of its number of rows."""
        self.token_s = 0.0
        """Seconds of a prompt token; 0 = none was seen."""

    def observe(self, decode_tokens: int, prefill_tokens: int, elapsed_s: float) -> None:
        """Learn from one step; the error of a mixed one goes to both means in proportion."""
        key = decode_tokens.bit_length()
        if not decode_tokens:
            self.token_s = _mean(self.token_s, elapsed_s / prefill_tokens) if prefill_tokens else self.token_s
        elif not prefill_tokens:
            self._decode_s[key] = _mean(self._decode_s.get(key, 0.0), elapsed_s)
        elif self.token_s and self._decode_s:
            decode_s = self.decode_s(decode_tokens)
            expected = decode_s + self.token_s * prefill_tokens
            change = _mean(expected, elapsed_s) / expected
            self._decode_s[key] = decode_s * change
            self.token_s *= change
        else:
            self.token_s = _mean(self.token_s, max(0.0, elapsed_s - self.decode_s(decode_tokens)) / prefill_tokens)

    def decode_s(self, decode_tokens: int) -> float:
        """Return the seconds of a step of so many rows; of the nearest size seen, 0 = none was."""
        if not decode_tokens or not self._decode_s:
            return 0.0
        key = decode_tokens.bit_length()
        return self._decode_s[min(self._decode_s, key=lambda known: (abs(known - key), known))]

    def prefill_tokens(self, decode_tokens: int, budget: int, left: int = 0) -> int:
        """Return how much of `budget` prompt tokens may take in a step of so many decoding rows.

        `left`: what the prompt whose turn it is still lacks.
        """
        if not (self._limit_s and decode_tokens and self.token_s):
            return budget
        decode_s = self.decode_s(decode_tokens)
        room = max(self._limit_s - decode_s, decode_s)
        tokens = int(room / self.token_s) // GRAIN * GRAIN
        if left * self.token_s <= STRETCH * room:
            tokens = max(tokens, left)
        return min(budget, max(LEAST_TOKENS, tokens))


def _mean(mean: float, value: float) -> float:
    return mean + WEIGHT * (min(value, SPIKE * mean) - mean) if mean else value
