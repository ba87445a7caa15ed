"""The nouns of the front: a client's session, a request, one of its choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from inferd.front.early import EarlyCancels
from inferd.front.outbox import Outbox, Stream
from inferd.metrics import TokenClock
from inferd_client.protocol import Finish, Usage

if TYPE_CHECKING:
    from inferd.front.detok import TextStream
    from inferd.front.model import Model
    from inferd.link import Grammar
    from inferd.loop import Timer
    from inferd_client.protocol import FinishReason, Generate

State = Literal["loading", "text", "waiting", "prefill", "decode", "preempted"]
MAX_SEED = 2**63 - 1
Role = Literal["user", "admin"]
Transport = Literal["ipc", "tcp"]


class Peer(NamedTuple):
    """One connection to a socket: routing ids are unique within a transport only."""

    transport: Transport
    identity: bytes


@dataclass(slots=True, eq=False)
class Session:
    """One client, known by its token; it owns requests over both sockets and over reconnects."""

    number: int
    token: str
    label: str
    role: Role
    last_heard: float
    key: str = ""
    """Public key under which it came over tcp; only its holder may resume the session. Empty = ipc."""
    data: Peer | None = None
    """Its present connection to each socket."""
    control: Peer | None = None
    lost_at: float | None = None
    """Since when the data connection is gone."""
    forgotten: bool = False
    """Out of the books: nothing reaches it any more."""
    last_sent: float = 0.0
    requests: dict[str, Request] = field(default_factory=dict)
    outbox: Outbox = field(default_factory=Outbox)
    early: EarlyCancels = field(default_factory=EarlyCancels)

    @property
    def name(self) -> str:
        """How logs and status call it; the token is secret."""
        return f"{self.label or 'client'}#{self.number}"


@dataclass(slots=True, eq=False)
class Choice:
    """The output of one choice so far."""

    text: TextStream
    clock: TokenClock = field(default_factory=TokenClock)
    num_ids: int = 0
    finish: FinishReason | None = None
    stop: str | int | None = None
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0


@dataclass(slots=True, eq=False)
class Charged:
    """Device seconds of a request and the money for them."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    """A `generate` from arrival to its last message."""

    key: str
    session: Session
    message: Generate
    model: Model
    arrival: float
    stream: Stream
    weight: int = 0
    """Bytes it holds, as `ByteBudget` counts them."""
    state: State = "text"
    done: int = 0
    total: int = 0
    reason: str = ""
    queued: bool = True
    """Counts against the queue limit; until it first runs."""
    submitted: bool = False
    prompt: list[int] | None = None
    grammar: Grammar | None = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    max_tokens: int = 0
    seed: int = 0
    digest: bytes = b""
    choices: list[Choice] = field(default_factory=list)
    cached_tokens: int = 0
    charged: Charged = field(default_factory=Charged)
    first_scheduled: float | None = None
    deadline: float | None = None
    queue_deadline: float | None = None
    last_sent: float = 0.0
    timers: dict[str, Timer] = field(default_factory=dict)
    ended: bool = False

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def num_output(self) -> int:
        return sum(choice.num_ids for choice in self.choices)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt) if self.prompt is not None else 0

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_output,
            cached_tokens=self.cached_tokens,
            drafted_tokens=sum(choice.drafted for choice in self.choices),
            accepted_tokens=sum(choice.accepted for choice in self.choices),
            preemptions=sum(choice.preemptions for choice in self.choices),
        )

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """How each choice ended; before it had any, all were cancelled."""
        if not self.choices:
            return tuple(Finish(choice=i, reason="cancelled") for i in range(self.message.sampling.n))
        return tuple(
            Finish(choice=i, reason=choice.finish or "cancelled", stop=choice.stop, seed=(self.seed + i) & MAX_SEED)
            for i, choice in enumerate(self.choices)
        )
