"""Drive a Core by hand: what the daemon would say, a clock, and a record of what the core did."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd_client import protocol as p
from inferd_client.call import Call, Channel, Item
from inferd_client.core import Action, Core
from inferd_client.options import RetryPolicy, Timeouts


@dataclass
class Bench:
    """A core and its surroundings."""

    core: Core = field(default_factory=lambda: Core("test", "do this"))
    now: float = 100.0
    sent: list[tuple[Channel, p.Request]] = field(default_factory=list)
    sockets: list[Action] = field(default_factory=list)

    def call(self, message: p.Request, *, retry: RetryPolicy | None = None, timeouts: Timeouts | None = None):
        """Submit a call; return it with the list its answers go to."""
        items: list[Item] = []
        call = Call(message, items.append, timeouts or Timeouts(), retry or RetryPolicy())
        self.core.submit(call, self.now)
        self.look()
        return call, items

    def look(self) -> list[p.Request]:
        """Take the core's actions; return the messages among them."""
        messages = []
        while self.core.actions:
            action = self.core.actions.popleft()
            if action.kind != "send":
                self.sockets.append(action)
                continue
            decoder = p.data_decoder if action.channel is Channel.DATA else p.control_decoder
            messages.append(p.decode(action.frames, decoder))
            self.sent.append((action.channel, messages[-1]))
        return messages

    def answer(self, reply: p.Reply, channel: Channel = Channel.DATA) -> list[p.Request]:
        self.core.received(channel, p.encode(reply), self.now)
        return self.look()

    def wait(self, seconds: float) -> list[p.Request]:
        """Let time pass as the driver would: waking at each due time."""
        end = self.now + seconds
        messages: list[p.Request] = []
        for _ in range(10_000):
            due = self.core.tick(self.now)
            messages += self.look()
            if self.now >= end:
                return messages
            self.now = min(end, max(due, self.now + 0.001))
        raise AssertionError("the core asks to be woken without end")

    def connect(self, *channels: Channel) -> None:
        for channel in channels or tuple(Channel)[::-1]:
            self.core.connected(channel, self.now)
            self.look()

    def welcome(
        self, channel: Channel, *, instance: str = "i1", session: str = "s1", max_frame: int = 1 << 20, role="user"
    ):
        return self.answer(
            p.Welcome(
                major=1,
                minor=0,
                version="t",
                instance=instance,
                session=session,
                role=role,
                limits=p.Limits(max_frame=max_frame, max_queue=1, max_client_requests=1),
                heartbeat_s=1.0,
            ),
            channel,
        )

    def up(self, *, instance: str = "i1", session: str = "s1") -> None:
        """Connect and welcome both sockets."""
        self.connect()
        self.welcome(Channel.CONTROL, instance=instance, session=session)
        self.welcome(Channel.DATA, instance=instance, session=session)

    def lose(self) -> None:
        """Break both connections."""
        for channel in Channel:
            self.core.disconnected(channel, self.now)


def tokens(request_id: str, seq: int, text: str = "x") -> p.Tokens:
    return p.Tokens(id=request_id, seq=seq, text=text, ids=(seq,))


def done(request_id: str) -> p.Done:
    usage = p.Usage(prompt_tokens=1, completion_tokens=1)
    return p.Done(id=request_id, reason="stop", finish=(), usage=usage, timings=p.Timings())


def generate(request_id: str = "r") -> p.Generate:
    return p.Generate(id=request_id, prompt="hi")
