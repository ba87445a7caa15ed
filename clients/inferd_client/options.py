"""Options of a client and of a single request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from .protocol import Code, Progress, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds, each apart from the others; None = wait for ever."""

    connect: float = 5.0
    """For a daemon to answer, before anything was sent to it."""
    reconnect: float = 20.0
    """For a daemon that went away to be back, before its calls fail with ConnectionLost."""
    first_token: float | None = None
    """From the call to its first output."""
    idle: float | None = 30.0
    """Between two messages about a call. The daemon reports progress every second, so this finds a dead peer
    even in a long prefill."""
    total: float | None = None
    """From the call to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which failed requests are sent again without asking: never one that has shown output.

    A code is retried when the daemon names a time (`overloaded`) or calls it safe (`engine_lost`). Add
    `server_restarted` to follow a daemon through its restart.
    """

    tries: int = 3
    """In all; 1 = no retry."""
    codes: frozenset[Code] = frozenset({Code.OVERLOADED, Code.ENGINE_LOST})
    pause: float = 0.25
    """Seconds before the second try where the daemon names none; doubles."""
    max_pause: float = 5.0

    def wait_before(self, tries: int, retry_after: float | None) -> float:
        """Seconds to wait after `tries` failed ones."""
        return min(self.pause * 2 ** (tries - 1), self.max_pause) if retry_after is None else retry_after


NO_RETRY = RetryPolicy(tries=1)


class RequestOptions(TypedDict, total=False):
    """What `generate` and `chat` take by keyword: these, and every field of SamplingParams by its own name."""

    model: str
    """Empty = the daemon's default model."""
    sampling: SamplingParams
    """A base that single sampling keywords change."""
    priority: int
    """-100 to 100; higher runs first."""
    deadline: float
    """Seconds the daemon may take in all; then DeadlineExceeded."""
    queue_timeout: float
    """Seconds it may wait for a first slot."""
    special_tokens: bool
    """Text prompt: text that spells a special token becomes that token."""
    keep_alive_s: float
    """Keep the model loaded this long afterwards; negative = for ever."""
    record: bool
    """Whether its lengths enter the daemon's traffic record; True unless said otherwise."""
    request_id: str
    """Unique among unfinished requests; made up when absent."""
    timeouts: Timeouts
    """In place of the client's."""
    retry: RetryPolicy
    """In place of the client's."""
    on_progress: Callable[[Progress], object]
    """Called with each progress report, from whoever waits for the result."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    n: int
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    include_stop: bool
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int] | None
    json_schema: Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None


class ChatOptions(RequestOptions, total=False):
    """RequestOptions and what only a chat has."""

    tools: Sequence[dict[str, Any]]
    template_args: Mapping[str, Any]
    """Extra names for the chat template; scalars only."""
