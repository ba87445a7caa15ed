"""One call in flight: what was asked, how far it came, where its answers go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from . import protocol as p
from .errors import InferdError
from .options import RetryPolicy, Timeouts

Work = p.Generate | p.Tokenize | p.Render
Order = p.Cancel | p.Status | p.Models | p.Load | p.Unload | p.Plugins | p.Traffic | p.Metrics | p.Drain
Asked = Work | Order
Item = p.Answer | InferdError
Sink = Callable[[Item], None]


class Channel(Enum):
    """The two sockets that carry calls."""

    DATA = "data"
    CONTROL = "control"


REPEATABLE = (p.Tokenize, p.Render, p.Status, p.Models, p.Plugins, p.Cancel, p.Load)
"""Calls whose effect is the same once or twice: asked again whatever happened to the daemon."""


@dataclass(slots=True, eq=False)
class Call:
    """A request and its state. Owned by the core; other threads only hold it."""

    message: Asked
    sink: Sink
    timeouts: Timeouts
    retry: RetryPolicy
    created: float = 0.0
    not_before: float = 0.0
    """Waits until then for its next try."""
    tries: int = 0
    sent: bool = False
    resent: bool = False
    """Sent twice to one instance under the same id, as its answer may have been lost."""
    next_seq: int = 0
    ended: bool = False
    wire_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.wire_id = self.message.id

    @property
    def channel(self) -> Channel:
        return Channel.DATA if isinstance(self.message, Work) else Channel.CONTROL

    @property
    def has_output(self) -> bool:
        return self.next_seq > 0

    @property
    def repeatable(self) -> bool:
        return isinstance(self.message, REPEATABLE)

    def wire_message(self) -> Asked:
        """Return the message under the id of the current try."""
        if self.wire_id == self.message.id:
            return self.message
        return msgspec.structs.replace(self.message, id=self.wire_id)

    def plan_retry(self, now: float, retry_after: float | None) -> float:
        """Make the call ready for another try under a new id; return the seconds until then."""
        wait = self.retry.wait_before(self.tries, retry_after)
        self.wire_id = f"{self.message.id}~{self.tries + 1}"
        self.not_before = now + wait
        self.sent = self.resent = False
        return wait
