"""What the daemon answers on the data and control sockets, but for the reports of status.py."""

from __future__ import annotations

from typing import Literal

from .base import Reply
from .codes import Code, FinishReason
from .cost import Cost


class Limits(Reply):
    max_frame: int
    max_queue: int
    max_client_requests: int
    max_context: int | None = None
    """Of the default model, once loaded."""


class Welcome(Reply, tag="welcome"):
    major: int
    minor: int
    version: str
    instance: str
    """Changes with every start of the daemon."""
    session: str
    """Secret; owns this client's requests over both sockets and reconnects."""
    role: Literal["user", "admin"]
    limits: Limits
    heartbeat_s: float
    resumed: bool = False


class Pong(Reply, tag="pong"):
    nonce: int = 0


class Accepted(Reply, tag="accepted"):
    """The request is queued."""

    id: str
    prompt_tokens: int
    max_tokens: int
    """Resolved limit."""


class Progress(Reply, tag="progress"):
    """Sent at least once a second while nothing else is."""

    id: str
    state: Literal["loading", "text", "waiting", "prefill", "decode", "preempted"]
    done: int = 0
    total: int = 0
    """Prompt tokens computed and in all, in state prefill; bytes or steps in state loading."""
    reason: str = ""
    """Why it waits: blocks, budget, slots, priority, grammar, sibling, loading."""


class TokenLogprob(Reply, array_like=True):
    token: int
    logprob: float
    rank: int
    """1 = most likely."""
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob), most likely first."""


class Tokens(Reply, tag="tokens"):
    """A piece of output. Deltas never retract; text may lag ids while a stop string or a character
    is incomplete, and catches up by the last message of the choice."""

    id: str
    seq: int
    """0, 1, 2... over the whole request."""
    choice: int = 0
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    spelling: dict[int, bytes] = {}
    """With logprobs: the bytes of every token id in them; a special token has none."""
    finish: FinishReason | None = None
    """Set on the last message of a choice."""


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0


class Timings(Reply):
    """Seconds from arrival on one monotonic clock; None where there is nothing to measure."""

    queue_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0


class Finish(Reply):
    choice: int
    reason: FinishReason
    stop: str | int | None = None
    """The stop string or stop token that ended it."""
    seed: int = 0


class Done(Reply, tag="done"):
    """End of a request, sent exactly once unless `error` is."""

    id: str
    reason: FinishReason
    """Of choice 0."""
    finish: tuple[Finish, ...]
    usage: Usage
    timings: Timings
    cost: Cost | None = None


class Error(Reply, tag="error"):
    """End of a request or answer to a call that failed. `id` None: no request could be named."""

    code: Code
    message: str
    id: str | None = None
    field: str | None = None
    limit: float | None = None
    retry_after_ms: int | None = None
    retry_safe: bool = False
    """True: nothing was generated, the same request may be sent again."""
    usage: Usage | None = None


class Tokenized(Reply, tag="tokenized"):
    id: str
    ids: list[int]


class Rendered(Reply, tag="rendered"):
    id: str
    text: str
    ids: list[int]


class Ok(Reply, tag="ok"):
    id: str
    detail: str = ""
