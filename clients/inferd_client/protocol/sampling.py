"""Sampling parameters and the one validator of their ranges."""

from __future__ import annotations

import math
from typing import Any

from .base import Request
from .codes import Caps
from .grammar import grammar_problem


class SamplingParams(Request):
    """How tokens are chosen and when to stop. Names and meanings follow vLLM and OpenAI."""

    temperature: float = 1.0
    """0 = greedy."""
    top_k: int = 0
    """0 = off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output."""
    presence_penalty: float = 0.0
    """Over output only, like frequency_penalty."""
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """None = a fresh one, returned in `done`. Choice i uses seed + i. The same seed draws the same noise for
    any prompt."""
    n: int = 1
    max_tokens: int | None = None
    """None = up to the end of the context."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Leave the matched stop string in the text."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Top alternatives reported for each output token besides the sampled one (0 = only it). Log-softmax of
    the raw logits: before temperature, penalties, biases and filters."""
    prompt_logprobs: int | None = None
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    json_schema: dict[str, Any] | None = None
    """The output is JSON that this schema allows; {} = any JSON. One of this and the next three at most."""
    regex: str | None = None
    """The whole output matches this regular expression (syntax of Rust's regex crate; \\d is 0 to 9)."""
    grammar: str | None = None
    """The output follows this grammar, written in Lark as llguidance understands it; it begins at `start`."""
    choice: tuple[str, ...] | None = None
    """The output is one of these."""

    def problem(self) -> tuple[str, str] | None:
        """Return (field, message) of the first value out of range; None when all are sound.

        The one validator: the client calls it before sending, the daemon on arrival. What needs the
        vocabulary (token ids below its size) is checked by the daemon.
        """
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                return name, "must be a finite number"
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                return name, f"must be within {low} and {high}, got {value}"
        if self.top_p <= 0:
            return "top_p", "must be above 0"
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            return "min_tokens", f"{self.min_tokens} exceeds max_tokens {self.max_tokens}"
        for name, limit in _COUNTS:
            value = getattr(self, name)
            if value is not None and len(value) > limit:
                return name, f"at most {limit} entries, got {len(value)}"
        if any(not s or len(s) > Caps.STOP_CHARS for s in self.stop):
            return "stop", f"each stop string has 1 to {Caps.STOP_CHARS} characters"
        if any(not w or len(w) > Caps.STOP_CHARS for w in self.bad_words):
            return "bad_words", f"each entry has 1 to {Caps.STOP_CHARS} characters"
        if any(not math.isfinite(b) or abs(b) > 1000 for b in self.logit_bias.values()):
            return "logit_bias", "biases must be finite and within -1000 and 1000"
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            if any(i < 0 for i in getattr(self, name) or ()):
                return name, "token ids must not be negative"
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            return "allowed_token_ids", "must not be empty"
        return grammar_problem(self)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("seed", 0, 2**63 - 1),
    ("n", 1, Caps.N),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("logprobs", 0, Caps.LOGPROBS),
    ("prompt_logprobs", 0, Caps.LOGPROBS),
)
_COUNTS: tuple[tuple[str, int], ...] = (
    ("stop", Caps.STOP),
    ("stop_token_ids", Caps.STOP_TOKEN_IDS),
    ("logit_bias", Caps.LOGIT_BIAS),
    ("bad_words", Caps.BAD_WORDS),
    ("allowed_token_ids", Caps.ALLOWED_TOKEN_IDS),
)
