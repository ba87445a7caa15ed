"""What calls return, beside the reply structs of the protocol that are results as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from .protocol import Cost, FinishReason, Timings, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """One delta of a stream. `str(piece)` is its text."""

    text: str
    ids: tuple[int, ...] = ()
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    """Set on the last piece of its choice."""
    spelling: dict[int, bytes] = field(default_factory=dict)
    """Bytes of the token ids in its logprobs."""

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Choice:
    """One of the `n` continuations."""

    index: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    """None only in the partial result of a failed request."""
    stop: str | int | None = None
    """The stop string or stop token that ended it."""
    seed: int | None = None
    """Passing it again as `seed` repeats the choice, as its first one."""


@dataclass(slots=True)
class Completion:
    """Result of a generation. `text`, `ids`, `finish` and `seed` are those of choice 0."""

    id: str
    choices: list[Choice]
    prompt_tokens: int = 0
    max_tokens: int | None = None
    """The limit the daemon resolved."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    spelling: dict[int, bytes] = field(default_factory=dict)
    """Bytes of every token id in the logprobs."""
    usage: Usage | None = None
    timings: Timings | None = None
    cost: Cost | None = None
    """Of its share of the daemon's device time."""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def ids(self) -> list[int]:
        return self.choices[0].ids

    @property
    def finish(self) -> FinishReason | None:
        return self.choices[0].finish

    @property
    def seed(self) -> int | None:
        return self.choices[0].seed

    def __str__(self) -> str:
        return self.text
