"""The traffic record as it crosses the wire and lies on disk: lengths and times of requests, never their text."""

from __future__ import annotations

from .base import Reply


class TrafficReport(Reply):
    """The requests for one model so far. Lengths are tokens, counted in buckets: a bucket is named by its greatest
    value, exact below 16 and at most an eighth wide above."""

    model: str
    since: float
    until: float
    """Unix seconds of the first and the last arrival."""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those found in the prefix cache."""
    lengths: tuple[tuple[int, int, int], ...] = ()
    """The joint histogram: (input length, output length, how many sequences); each choice is one."""
    gaps_ms: tuple[tuple[int, int], ...] = ()
    """Milliseconds between arrivals, and how often."""
    reuse_percent: tuple[tuple[int, int], ...] = ()
    """Share of the prompt that was cached, in steps of ten, and how many requests."""
    ends: dict[str, int] = {}
    """How requests ended; the outputs of `length` and `cancelled` were cut."""
    recent: tuple[tuple[int, int, int, int], ...] = ()
    """The latest sequences: (milliseconds after `since`, input length, output length, cached tokens)."""


class TrafficReply(Reply, tag="traffic"):
    id: str
    models: tuple[TrafficReport, ...] = ()
    enabled: bool = True
    """Whether the daemon keeps a record at all."""
