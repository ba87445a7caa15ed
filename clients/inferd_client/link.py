"""State of one socket: hello and welcome, heartbeat, liveness, back-off. No I/O and no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

from .call import Channel

HELLO_WAIT = 1.0
"""Seconds for the first welcome; doubles with each vain try."""
MAX_HELLO_WAIT = 32.0
BEATS = 5
"""Silent heartbeats after which a peer counts as dead."""


@dataclass(slots=True, eq=False)
class Link:
    """One of the two sockets."""

    channel: Channel
    wanted: bool = False
    opened: bool = False
    attached: bool = False
    """The transport is connected."""
    hello_at: float | None = None
    """When the unanswered hello was sent."""
    welcomed: bool = False
    since: float = 0.0
    """When it was last wanted or lost; meaningful while not welcomed."""
    last_in: float = 0.0
    last_out: float = 0.0
    pinged_at: float | None = None
    """When the oldest unanswered ping was sent."""
    hello_wait: float = HELLO_WAIT
    heartbeat: float = 1.0

    def lost(self, now: float) -> None:
        """Forget the connection."""
        if self.welcomed:
            self.since = now
        self.attached = self.welcomed = False
        self.hello_at = self.pinged_at = None

    def overslept(self, seconds: float) -> None:
        """This side did not run for so long: the peer's time begins to count when it can be heard again."""
        self.since += seconds
        self.hello_at = None if self.hello_at is None else self.hello_at + seconds
        self.pinged_at = None if self.pinged_at is None else self.pinged_at + seconds

    def said_hello(self, now: float) -> None:
        if self.welcomed:
            self.since = now
        self.welcomed = False
        self.hello_at = self.last_out = now

    def was_welcomed(self, now: float, heartbeat: float) -> None:
        self.welcomed, self.hello_at = True, None
        self.hello_wait = HELLO_WAIT
        self.heard(now)
        self.heartbeat = max(heartbeat, 0.05)

    def back_off(self) -> None:
        """Note a vain try: the next one is given twice as long."""
        self.hello_wait = min(self.hello_wait * 2, MAX_HELLO_WAIT)

    def hello_overdue(self, now: float) -> bool:
        return self.hello_at is not None and now >= self.hello_at + self.hello_wait

    def heard(self, now: float) -> None:
        """Note traffic from the peer; any counts as a heartbeat."""
        self.last_in = now
        self.pinged_at = None

    def pinged(self, now: float) -> None:
        self.last_out = now
        if self.pinged_at is None:
            self.pinged_at = now

    def silent(self, now: float) -> bool:
        """Whether a welcomed peer has left pings unanswered for too long."""
        return self.welcomed and self.pinged_at is not None and now >= self.pinged_at + BEATS * self.heartbeat

    def ping_due(self, now: float) -> bool:
        if not self.welcomed:
            return False
        idle_in = self.pinged_at is None and now >= self.last_in + self.heartbeat
        return idle_in or now >= self.last_out + self.heartbeat

    def next_event(self) -> float:
        """When this link next needs a look; infinite = nothing is pending."""
        if not self.welcomed:
            return float("inf") if self.hello_at is None else self.hello_at + self.hello_wait
        if self.pinged_at is None:
            return min(self.last_in, self.last_out) + self.heartbeat
        return min(self.last_out + self.heartbeat, self.pinged_at + BEATS * self.heartbeat)
