"""The client core: handshake, dispatch, heartbeats, losses, restarts, retries."""

from __future__ import annotations

import msgspec
import pytest

from inferd_client import errors
from inferd_client import protocol as p
from inferd_client.call import Channel
from inferd_client.options import NO_RETRY, RetryPolicy, Timeouts

from .scripted_core import Bench, done, generate, tokens

D, C = Channel.DATA, Channel.CONTROL


def kinds(items):
    return [type(item).__name__ for item in items]


def test_control_speaks_first_and_its_session_opens_data():
    bench = Bench()
    bench.call(generate())
    assert [action.channel for action in bench.sockets] == [C, D]
    bench.connect(D)
    assert bench.sent == []  # data waits for the token
    bench.connect(C)
    assert [(channel, message.session) for channel, message in bench.sent] == [(C, None)]
    assert bench.welcome(C, session="tok") == [p.Hello(client="test", session="tok")]
    assert bench.sent[-1][0] is D
    assert bench.welcome(D, session="tok") == [generate()]


def test_a_control_call_opens_no_data_socket():
    bench = Bench()
    _, items = bench.call(p.Status(id="s"))
    bench.connect(C)
    assert bench.welcome(C) == [p.Status(id="s")]
    bench.answer(p.StatusReply(id="s", pid=7), C)
    assert items == [p.StatusReply(id="s", pid=7)]
    assert {action.channel for action in bench.sockets} == {C}
    assert not bench.core.calls


def test_answers_reach_the_call_they_name():
    bench = Bench()
    bench.call(generate("a"))
    bench.up()
    _, items_a = bench.call(generate("a2"))
    _, items_b = bench.call(generate("b"))
    bench.answer(tokens("b", 0, "B"))
    bench.answer(tokens("a2", 0, "A"))
    bench.answer(done("b"))
    bench.answer(tokens("b", 1, "late"))
    assert [item.text for item in items_a] == ["A"]
    assert kinds(items_b) == ["Tokens", "Done"]


def test_an_id_in_use_is_refused_without_sending():
    bench = Bench()
    bench.call(generate("a"))
    bench.up()
    count = len(bench.sent)
    _, items = bench.call(generate("a"))
    assert kinds(items) == ["DuplicateRequest"]
    assert len(bench.sent) == count


def test_repeated_tokens_are_dropped_and_a_gap_fails_the_call_and_cancels_it():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.answer(tokens("r", 0))
    bench.answer(tokens("r", 0))
    assert kinds(items) == ["Tokens"]
    sent = bench.answer(tokens("r", 2))
    assert [message.request for message in sent] == ["r"]
    assert kinds(items) == ["Tokens", "ConnectionLost"]
    assert "1 to 1" in str(items[-1])


def test_max_frame_is_enforced_here():
    bench = Bench()
    _, items = bench.call(p.Generate(id="r", prompt="x" * 2000))
    bench.connect()
    bench.welcome(C, max_frame=1000)
    assert bench.welcome(D, max_frame=1000) == []
    assert kinds(items) == ["InvalidParam"]
    assert items[0].limit == 1000


@pytest.mark.parametrize(
    "message",
    [
        p.Generate(id="r", prompt="half a pair \ud83d"),
        p.Generate(id="r", messages=[p.Message(role="user", content="\udcff")]),
        p.Generate(id="r", prompt="x", tools=[{"name": object()}]),
        p.Generate(id="r", prompt_ids=[2**70]),
        p.Cancel(id="r", request="\ud800"),
    ],
    ids=["text", "message", "object", "number", "id"],
)
def test_what_cannot_be_encoded_fails_its_call_only(message):
    bench = Bench()
    _, good = bench.call(generate("good"))
    bench.up()
    _, items = bench.call(message)
    assert kinds(items) == ["InvalidParam"]
    assert "cannot be encoded" in str(items[0])
    bench.answer(done("good"))
    assert kinds(good) == ["Done"]


def test_the_first_call_fails_with_the_remedy_when_nobody_answers():
    bench = Bench()
    _, items = bench.call(generate(), timeouts=Timeouts(connect=2.0))
    bench.wait(1.9)
    assert items == []
    bench.wait(0.2)
    assert kinds(items) == ["ConnectionFailed"]
    assert "do this" in str(items[0])


def test_hello_is_repeated_on_a_new_socket_with_doubling_patience():
    bench = Bench()
    bench.call(p.Status(id="s"), timeouts=Timeouts(connect=1000.0))
    bench.sockets.clear()
    times = []
    for _ in range(7):
        bench.connect(C)
        before = bench.now
        while not bench.sockets:
            bench.wait(0.1)
        bench.sockets.clear()
        times.append(bench.now - before)
    assert times == pytest.approx([1, 2, 4, 8, 16, 32, 32], abs=0.2)


def test_pings_keep_an_idle_link_alive_and_silence_reopens_it():
    bench = Bench()
    bench.call(p.Status(id="s"))
    bench.connect(C)
    bench.welcome(C)
    bench.answer(p.StatusReply(id="s"), C)
    bench.sockets.clear()
    for _ in range(20):
        if any(isinstance(message, p.Ping) for message in bench.wait(1.0)):
            bench.answer(p.Pong(), C)
    assert bench.sockets == []
    bench.wait(7.0)
    assert [(action.kind, action.channel) for action in bench.sockets] == [("reopen", C)]


def test_time_that_passed_while_this_process_slept_is_no_silence():
    bench = Bench()
    bench.call(p.Status(id="s"))
    bench.connect(C)
    bench.welcome(C)
    bench.sockets.clear()
    bench.now += 3600
    bench.core.tick(bench.now)
    assert bench.sockets == []
    assert p.Ping() in bench.look()


def test_a_lost_connection_resumes_and_goes_on_where_it_was():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.answer(tokens("r", 0))
    bench.lose()
    bench.wait(1)
    bench.up()
    assert sum(isinstance(message, p.Generate) for _, message in bench.sent) == 1
    bench.answer(tokens("r", 1))
    bench.answer(done("r"))
    assert kinds(items) == ["Tokens", "Tokens", "Done"]
    assert [message.session for _, message in bench.sent if isinstance(message, p.Hello)] == [None, "s1", "s1", "s1"]


def test_a_request_without_an_answer_is_asked_again_after_a_loss_and_its_duplicate_forgiven():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.lose()
    bench.up()
    assert sum(isinstance(message, p.Generate) for _, message in bench.sent) == 2
    bench.answer(p.Error(id="r", code=p.Code.DUPLICATE_REQUEST, message="known"))
    bench.answer(tokens("r", 0))
    bench.answer(done("r"))
    assert kinds(items) == ["Tokens", "Done"]


def test_a_duplicate_that_is_not_ours_is_an_error():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.answer(p.Error(id="r", code=p.Code.DUPLICATE_REQUEST, message="known"))
    assert kinds(items) == ["DuplicateRequest"]


def test_a_daemon_that_stays_away_fails_what_was_sent():
    bench = Bench()
    _, sent = bench.call(generate("sent"), timeouts=Timeouts(reconnect=10.0))
    bench.up()
    bench.answer(tokens("sent", 0))
    bench.lose()
    _, unsent = bench.call(generate("unsent"), timeouts=Timeouts(connect=3.0))
    bench.wait(3.1)
    assert kinds(unsent) == ["ConnectionFailed"]
    assert kinds(sent) == ["Tokens"]
    bench.wait(7)
    assert kinds(sent) == ["Tokens", "ConnectionLost"]


def test_another_instance_fails_generations_and_asks_again_what_has_no_effect():
    bench = Bench()
    _, begun = bench.call(generate("begun"))
    _, fresh = bench.call(generate("fresh"))
    _, tokenize = bench.call(p.Tokenize(id="t", text="x"))
    _, unload = bench.call(p.Unload(id="u", model="m"))
    bench.up()
    bench.answer(tokens("begun", 0))
    bench.lose()
    bench.sent.clear()
    bench.up(instance="i2", session="s2")
    assert kinds(begun) == ["Tokens", "ServerRestarted"]
    assert not begun[-1].retry_safe
    assert kinds(fresh) == ["ServerRestarted"]
    assert fresh[-1].retry_safe
    assert kinds(unload) == ["ServerRestarted"]
    assert [message.id for _, message in bench.sent if not isinstance(message, p.Hello)] == ["t"]
    bench.answer(p.Tokenized(id="t", ids=[1]))
    assert kinds(tokenize) == ["Tokenized"]


def test_server_restarted_is_retried_when_the_caller_allows_it_and_nothing_was_seen():
    policy = RetryPolicy(codes=frozenset({p.Code.SERVER_RESTARTED}))
    bench = Bench()
    _, begun = bench.call(generate("begun"), retry=policy)
    _, fresh = bench.call(generate("fresh"), retry=policy)
    bench.up()
    bench.answer(tokens("begun", 0))
    bench.lose()
    bench.sent.clear()
    bench.up(instance="i2", session="s2")
    bench.wait(1)
    assert kinds(begun) == ["Tokens", "ServerRestarted"]
    assert [message.id for _, message in bench.sent if isinstance(message, p.Generate)] == ["fresh~2"]
    bench.answer(tokens("fresh~2", 0))
    bench.answer(done("fresh~2"))
    assert kinds(fresh) == ["Progress", "Tokens", "Done"]


def test_the_data_socket_may_be_the_first_to_see_the_new_instance():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.sent.clear()
    bench.core.connected(D, bench.now)  # its loss and return, before control noticed anything
    bench.look()
    bench.welcome(D, instance="i2", session="s2")
    assert kinds(items) == ["ServerRestarted"]
    assert bench.sent[-1] == (C, p.Hello(client="test", session="s2"))


def test_an_expired_session_fails_streams_and_sends_the_rest_again():
    bench = Bench()
    _, begun = bench.call(generate("begun"))
    _, fresh = bench.call(generate("fresh"))
    bench.up()
    bench.answer(tokens("begun", 0))
    bench.lose()
    bench.sent.clear()
    bench.up(session="s2")
    assert kinds(begun) == ["Tokens", "ConnectionLost"]
    assert fresh == []
    assert [message.id for _, message in bench.sent if isinstance(message, p.Generate)] == ["fresh"]


def test_overload_is_retried_after_the_time_it_names_and_a_bounded_number_of_times():
    bench = Bench()
    _, items = bench.call(generate(), retry=RetryPolicy(tries=3))
    bench.up()
    for attempt, name in enumerate(("r", "r~2", "r~3"), start=1):
        assert bench.sent[-1][1].id == name
        bench.answer(p.Error(id=name, code=p.Code.OVERLOADED, message="full", retry_after_ms=700))
        if attempt < 3:
            assert not [m for m in bench.wait(0.6) if isinstance(m, p.Generate)]
            assert [m.id for m in bench.wait(0.2) if isinstance(m, p.Generate)] == [f"r~{attempt + 1}"]
    assert kinds(items) == ["Progress", "Progress", "Overloaded"]
    assert items[-1].retry_after == 0.7


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (p.Error(id="r", code=p.Code.OVERLOADED, message="m", retry_after_ms=1), NO_RETRY),
        (p.Error(id="r", code=p.Code.OVERLOADED, message="m"), RetryPolicy()),
        (p.Error(id="r", code=p.Code.ENGINE_LOST, message="m", retry_safe=False), RetryPolicy()),
        (p.Error(id="r", code=p.Code.NUMERIC_ERROR, message="m", retry_safe=True), RetryPolicy()),
    ],
)
def test_no_retry_without_leave(error, policy):
    bench = Bench()
    _, items = bench.call(generate(), retry=policy)
    bench.up()
    bench.answer(error)
    assert kinds(items) == [errors.ERRORS[error.code].__name__]


def test_nothing_is_retried_once_output_was_seen():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.answer(tokens("r", 0))
    bench.answer(p.Error(id="r", code=p.Code.ENGINE_LOST, message="m", retry_safe=True))
    assert kinds(items) == ["Tokens", "EngineLost"]


def test_abandoning_tells_the_daemon_and_nothing_more_is_delivered():
    bench = Bench()
    call, items = bench.call(generate())
    bench.up()
    bench.core.abandon(call, bench.now)
    assert [message.request for message in bench.look()] == ["r"]
    assert bench.sent[-1][0] is C
    bench.answer(tokens("r", 0))
    bench.core.abandon(call, bench.now)
    assert bench.look() == []
    assert items == []


def test_a_cancel_follows_the_current_try_and_ends_one_that_waits_for_its_next():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.answer(p.Error(id="r", code=p.Code.OVERLOADED, message="m", retry_after_ms=1000))
    bench.call(p.Cancel(id="c", request="r"))
    assert kinds(items) == ["Progress", "Done"]
    assert items[-1].reason == "cancelled"
    assert not [m for m in bench.wait(2) if isinstance(m, p.Generate)]

    bench.call(generate("q"))
    bench.answer(p.Error(id="q", code=p.Code.OVERLOADED, message="m", retry_after_ms=10))
    bench.wait(0.1)
    bench.call(p.Cancel(id="c2", request="q"))
    assert bench.sent[-1] == (C, p.Cancel(id="c2", request="q~2"))


def test_what_the_daemon_works_on_for_nobody_is_cancelled():
    bench = Bench()
    bench.call(generate("a"))
    bench.up()
    sent = bench.answer(p.Accepted(id="ghost", prompt_tokens=1, max_tokens=1))
    assert [message.request for message in sent] == ["ghost"]


def test_closing_cancels_and_fails_everything_and_later_calls():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.core.close(bench.now)
    assert [message.request for message in bench.look()] == ["r"]
    _, later = bench.call(generate("later"))
    assert kinds(items) == kinds(later) == ["ClientClosed"]


@pytest.mark.parametrize("by_header", [True, False])
def test_a_major_mismatch_fails_calls_at_once(by_header):
    bench = Bench()
    _, items = bench.call(generate())
    bench.connect()
    frames = p.encode(p.Error(code=p.Code.PROTOCOL_MISMATCH, message="this end speaks 2"))
    if by_header:
        frames[0] = p.MAGIC + b"\x02"
    bench.core.received(C, frames, bench.now)
    _, later = bench.call(generate("later"))
    assert kinds(items) == kinds(later) == ["ProtocolMismatch"]


def test_a_refused_hello_fails_the_calls_that_wait_for_it():
    bench = Bench()
    _, items = bench.call(generate(), retry=NO_RETRY)
    bench.connect()
    bench.answer(p.Error(code=p.Code.OVERLOADED, message="1024 clients", retry_after_ms=1000), C)
    assert kinds(items) == ["Overloaded"]


def test_a_forgotten_connection_is_greeted_anew():
    bench = Bench()
    bench.call(generate())
    bench.up()
    bench.sockets.clear()
    bench.answer(p.Error(code=p.Code.UNAUTHORIZED, message="hello first"), D)
    assert [(action.kind, action.channel) for action in bench.sockets] == [("reopen", D)]


def test_replies_of_a_newer_minor_are_skipped_but_garbled_ones_fail_their_call():
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    new_kind = [p.HEADER, msgspec.msgpack.encode({"type": "hologram", "id": "r"})]
    bench.core.received(D, new_kind, bench.now)
    extra = [p.HEADER, msgspec.msgpack.encode({"type": "tokens", "id": "r", "seq": 0, "text": "a", "new": 1})]
    bench.core.received(D, extra, bench.now)
    assert [item.text for item in items] == ["a"]
    bench.core.received(D, [p.HEADER, msgspec.msgpack.encode({"type": "tokens", "id": "r", "seq": "x"})], bench.now)
    assert kinds(items) == ["Tokens", "BadFrame"]


@pytest.mark.parametrize("frames", [[], [b""], [b"INFD\x01"], [b"x", b"y"], [b"INFD\x01", b"\xc1"], [b""] * 6])
def test_junk_disturbs_nothing(frames):
    bench = Bench()
    _, items = bench.call(generate())
    bench.up()
    bench.core.received(D, frames, bench.now)
    bench.answer(done("r"))
    assert kinds(items) == ["Done"]


@pytest.mark.parametrize(("role", "outcome"), [("admin", ["Ok"]), ("user", ["Unauthorized"])])
def test_unauthorized_means_hello_again_or_the_wrong_role(role, outcome):
    bench = Bench()
    _, items = bench.call(p.Unload(id="u", model="m"))
    bench.connect(C)
    bench.welcome(C, role=role)
    bench.answer(p.Error(id="u", code=p.Code.UNAUTHORIZED, message="no"), C)
    bench.connect(C)
    bench.welcome(C, role=role, session="s2")
    bench.answer(p.Ok(id="u"), C)
    assert kinds(items) == outcome


@pytest.mark.parametrize("welcomed", [True, False])
def test_a_pause_of_this_side_is_not_the_silence_of_the_daemon(welcomed):
    bench = Bench()
    bench.call(p.Status(id="s"))
    bench.connect(C)
    if welcomed:
        bench.welcome(C)
        bench.wait(1.5)  # a ping is unanswered
    opened = len(bench.sockets)
    bench.now += 1000.0
    bench.core.overslept(1000.0)
    assert not [message for message in bench.wait(0.1) if isinstance(message, p.Hello)]
    assert len(bench.sockets) == opened
    bench.wait(10.0)
    assert len(bench.sockets) > opened


def test_a_pause_while_connecting_leaves_the_daemon_its_time():
    bench = Bench()
    _, items = bench.call(p.Status(id="s"), timeouts=Timeouts(connect=5.0))
    bench.wait(1.0)
    bench.now += 1000.0
    bench.core.overslept(1000.0)
    bench.wait(3.0)
    assert items == []
    bench.wait(2.0)
    assert kinds(items) == ["ConnectionFailed"]
