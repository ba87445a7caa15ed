"""Whatever order, loss or restart: a stream shows the truth up to some point, and ends once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inferd_client import protocol as p
from inferd_client.call import Channel
from inferd_client.errors import InferdError
from inferd_client.options import RetryPolicy, Timeouts

from .scripted_core import Bench, done, generate, tokens

LENGTH = 6
TRUTH = [f"<{i}>" for i in range(LENGTH)]


def ends(items) -> list:
    return [item for item in items if isinstance(item, p.Done | InferdError)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, LENGTH), max_size=20))
def test_reordered_repeated_and_lost_answers_never_show_wrong_text(order):
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    for seq in order:
        bench.answer(done("r") if seq == LENGTH else tokens("r", seq, TRUTH[seq]))
    shown = [item.text for item in items if isinstance(item, p.Tokens)]
    assert shown == TRUTH[: len(shown)]
    assert len(ends(items)) <= 1
    if ends(items):
        assert ends(items)[0] is items[-1]
    in_order = [seq for i, seq in enumerate(order) if seq not in order[:i]]
    if in_order and in_order[0] not in (0, LENGTH):
        assert shown == []
        assert isinstance(items[-1], InferdError)


EVENTS = st.sampled_from(["token", "done", "lose", "drop", "back", "restart", "expire", "overload", "wait"])


class Daemon:
    """What a right daemon would do with one client, per instance and session."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.up = False
        self.instance = self.session = 1
        self.running: dict[str, int] = {}
        self.known = 0

    def take(self) -> None:
        """Look at what the client sent since the last time."""
        new, self.known = self.bench.sent[self.known :], len(self.bench.sent)
        for _, message in new:
            if isinstance(message, p.Generate):
                if message.id in self.running:
                    self.bench.answer(p.Error(id=message.id, code=p.Code.DUPLICATE_REQUEST, message="known"))
                else:
                    self.running[message.id] = 0
            elif isinstance(message, p.Cancel):
                self.running.pop(message.request, None)

    def step(self, event: str) -> None:
        if event == "drop":
            self.known = len(self.bench.sent)  # lost on the way
        self.take()
        if event in ("lose", "drop", "restart", "expire"):
            self.bench.lose()
            self.up = False
            if event in ("restart", "expire"):
                self.running.clear()
                self.session += 1
                self.instance += event == "restart"
        elif event == "back" and not self.up:
            self.up = True
            self.bench.up(instance=f"i{self.instance}", session=f"s{self.session}")
        elif event == "wait":
            self.bench.wait(0.4)
        elif self.up:
            self.work(event)

    def work(self, event: str) -> None:
        for name, count in list(self.running.items()):
            if event == "token" and count < LENGTH:
                self.running[name] += 1
                self.bench.answer(tokens(name, count, TRUTH[count]))
            elif event == "done":
                del self.running[name]
                self.bench.answer(done(name))
            elif event == "overload" and count == 0:
                del self.running[name]
                self.bench.answer(p.Error(id=name, code=p.Code.OVERLOADED, message="full", retry_after_ms=100))


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_losses_restarts_and_retries_never_show_wrong_text_and_always_end(events):
    bench = Bench()
    policy = RetryPolicy(codes=frozenset({p.Code.OVERLOADED, p.Code.SERVER_RESTARTED}))
    _, items = bench.call(generate(), retry=policy, timeouts=Timeouts(connect=50.0, reconnect=50.0))
    daemon = Daemon(bench)
    for event in ["back", *events]:
        daemon.step(event)
    for event in ("lose", "back"):
        daemon.step(event)
    for event in ("wait", "wait", "wait", "token", "done"):
        daemon.step(event)
    shown = [item.text for item in items if isinstance(item, p.Tokens)]
    assert shown == TRUTH[: len(shown)]
    assert len(ends(items)) == 1
    assert ends(items)[0] is items[-1]
    assert not bench.core.calls


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Channel)), st.binary(max_size=40)), max_size=10))
def test_hostile_bytes_raise_nothing(messages):
    bench = Bench()
    bench.call(generate())
    bench.up()
    for channel, body in messages:
        bench.core.received(channel, [p.HEADER, body], bench.now)
    assert bench.wait(0.5) is not None
