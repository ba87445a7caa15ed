"""Connections: hello, resuming, reconnecting, hostile frames, size limits."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferd_client import protocol as p
from tests.front.harness import WAIT_S, Daemon, Raw, daemon, eventually, streaming, worker_pid

LIMIT = 1 << 20


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    config = {"daemon": {"max_frame": LIMIT, "max_clients": 64, "heartbeat_s": 20.0}}
    with daemon(config=config, delay_s=0.005, context=200_000, chunk=100_000) as running:
        worker_pid(running.client("warm"))
        yield running


@pytest.fixture
def client(served: Daemon) -> Iterator[Raw]:
    client = served.client()
    yield client
    client.close()


def test_welcome_tells_version_limits_and_a_secret_session(served: Daemon, client: Raw) -> None:
    welcome = client.welcome
    assert (welcome.major, welcome.minor, welcome.role) == (p.MAJOR, p.MINOR, "admin")
    assert welcome.limits == p.Limits(max_frame=LIMIT, max_queue=512, max_client_requests=256, max_context=200_000)
    assert welcome.instance == client.status().instance
    assert len(welcome.session) >= 32
    assert welcome.session != served.client().session
    assert client.session not in msgspec.json.encode(client.status()).decode()


def test_another_major_is_refused_with_both_versions(client: Raw) -> None:
    client.data.send_multipart([b"INFD\x02", msgspec.msgpack.encode({"type": "ping"})])
    error = client.receive()
    assert error.code == p.Code.PROTOCOL_MISMATCH
    assert "protocol 2" in error.message
    assert "protocol 1" in error.message
    client.data.send_multipart(p.encode(p.Hello(major=7)))
    assert client.receive().code == p.Code.PROTOCOL_MISMATCH


def test_without_hello_nothing_is_served(served: Daemon) -> None:
    stranger = served.client(hello=False)
    stranger.generate("x", id="r")
    error = stranger.receive()
    assert (error.code, error.id) == (p.Code.UNAUTHORIZED, "r")
    stranger.control.send_multipart(p.encode(p.Status(id="s")))
    assert stranger._receive(stranger.control, WAIT_S).code == p.Code.UNAUTHORIZED


def test_ping_is_answered_on_both_sockets(client: Raw) -> None:
    client.send(p.Ping(nonce=7))
    assert client.receive() == p.Pong(nonce=7)
    client.control.send_multipart(p.encode(p.Ping(nonce=8)))
    assert client._receive(client.control, WAIT_S) == p.Pong(nonce=8)


def test_an_unknown_field_is_refused_by_name(client: Raw) -> None:
    raw = {"type": "generate", "id": "r", "prompt": "x", "sampling": {"temprature": 1.0}}
    client.data.send_multipart([p.HEADER, msgspec.msgpack.encode(raw)])
    error = client.receive()
    assert (error.code, error.id) == (p.Code.INVALID_PARAM, "r")
    assert "temprature" in error.message


NESTED = b"\x91" * 200_000 + b"\xc0"
HOSTILE: list[list[bytes]] = [
    [],
    [b""],
    [b"", b""],
    [p.HEADER],
    [p.HEADER, b""],
    [p.HEADER, b"\xff\xfe junk"],
    [p.HEADER, msgspec.msgpack.encode(5)],
    [p.HEADER, msgspec.msgpack.encode({"type": "nonsense", "id": "x"})],
    [p.HEADER, NESTED],
    [p.HEADER, b"\xdd\xff\xff\xff\xff"],
    [p.HEADER, b"\xdb\xff\xff\xff\xff"],
    [p.HEADER, b"\x81\xa4type\xa3\xff\xfe\xfd"],
    [p.HEADER, msgspec.msgpack.encode({"type": "ping"}), b"more"],
    [p.HEADER, b"a", b"b", b"c", b"d"],
    [b"GET / HTTP/1.1\r\n\r\n"],
    [b"\x80\x04\x95cos\nsystem\n", b"pickle"],
    [b'{"type": "ping"}'],
]


@pytest.mark.parametrize("frames", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("side", ["data", "control"])
def test_hostile_frames_hurt_nobody(served: Daemon, client: Raw, frames: list[bytes], side: str) -> None:
    socket = client.data if side == "data" else client.control
    good = client.generate("good")
    before = client.status().counters.get("inferd_bad_frames_total", 0)
    socket.send_multipart(frames or [b""])
    assert eventually(lambda: client.status().counters.get("inferd_bad_frames_total", 0) == before + 1)
    assert isinstance(client.finish(good), p.Done)
    assert client.text(good) == "good"


def test_random_frames_hurt_nobody(client: Raw) -> None:
    rng = random.Random(5)
    for _ in range(300):
        frames = [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 6))]
        (client.data if rng.random() < 0.5 else client.control).send_multipart(frames)
    assert client.run("still here")[0] == "still here"


def test_raw_bytes_on_the_socket_file_hurt_nobody(served: Daemon, client: Raw) -> None:
    import socket

    for junk in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 100, b""):
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(str(served.runtime / "data.sock"))
            plain.sendall(junk)
    assert client.run("fine")[0] == "fine"


@pytest.mark.parametrize(("extra", "served_it"), [(-1, True), (1, False), (63 << 20, False)])
def test_the_size_limit_is_enforced(served: Daemon, extra: int, served_it: bool) -> None:
    victim, other = served.client("big"), served.client("other")
    before = _rss(served.pid)
    room = LIMIT - len(p.encode(p.Tokenize(id="t", text="x" * 70_000))[1]) + 70_000
    victim.send(p.Tokenize(id="t", text="x" * (room + extra)))
    answer = victim.receive(WAIT_S if served_it else 1)
    if served_it:
        assert len(answer.ids) == room + extra
    else:
        assert answer is None
        assert _rss(served.pid) - before < 32 << 20
    assert other.run("small")[0] == "small"
    victim.close()


def test_max_clients_is_a_limit_with_an_answer() -> None:
    with daemon(config={"daemon": {"max_clients": 3}}) as running:
        clients = [running.client() for _ in range(3)]
        fourth = running.client(hello=False)
        fourth.control.send_multipart(p.encode(p.Hello()))
        assert fourth._receive(fourth.control, WAIT_S).code == p.Code.OVERLOADED
        assert clients[0].status().clients == 3
        clients[1].close()
        eventually(lambda: is_welcome(running.client(hello=False)))


def is_welcome(client: Raw) -> bool:
    client.control.send_multipart(p.encode(p.Hello()))
    return isinstance(client._receive(client.control, WAIT_S), p.Welcome)


class TestResume:
    def test_a_new_connection_takes_over_a_running_stream(self, served: Daemon, client: Raw) -> None:
        request = client.generate("abc", ignore_eos=True)
        client.until(request, p.Tokens)
        successor = Raw(served.runtime, session=client.session)
        assert successor.welcome.resumed
        assert successor.session == client.session
        first = successor.until(request, p.Tokens)
        while len(client.tokens(request)) < first.seq:
            client.until(request, p.Tokens)
        successor.call(p.Cancel(id="c", request=request))
        done = successor.finish(request)
        tokens = [m for m in (*client.inbox, *successor.inbox) if isinstance(m, p.Tokens)]
        assert [m.seq for m in tokens] == list(range(len(tokens)))
        used = done.usage.completion_tokens
        assert "".join(m.text for m in tokens) == ("abc" * used)[:used]
        successor.close()

    def test_control_of_a_resumed_session_cancels_its_requests(self, served: Daemon, client: Raw) -> None:
        request = client.generate("abc", ignore_eos=True)
        client.until(request, p.Tokens)
        successor = Raw(served.runtime, session=client.session)
        assert successor.call(p.Cancel(id="c", request=request)).detail == "cancelled"
        assert successor.finish(request).reason == "cancelled"
        successor.close()

    def test_what_ended_while_nobody_was_there_is_answered(self, served: Daemon, client: Raw) -> None:
        request = client.generate("abc", ignore_eos=True)
        client.until(request, p.Tokens)
        session = client.session
        client.close()
        watcher = served.client("watcher")
        eventually(lambda: not [r for r in watcher.status().requests if r.id == request])
        successor = Raw(served.runtime, session=session)
        assert successor.welcome.resumed
        assert successor.finish(request).reason == "cancelled"
        successor.close()

    def test_a_wrong_or_expired_token_begins_anew(self) -> None:
        with daemon(config={"daemon": {"session_ttl_s": 0.5}}, delay_s=0.005, context=200_000) as running:
            watcher, guess = running.client("watcher"), Raw(running.runtime, session="A" * 32)
            assert not guess.welcome.resumed
            assert guess.session != "A" * 32
            request = guess.generate("abc", ignore_eos=True)
            guess.until(request, p.Tokens)
            session = guess.session
            guess.close()
            eventually(lambda: watcher.status().clients == 1)
            late = Raw(running.runtime, session=session)
            assert not late.welcome.resumed
            assert late.session != session
            late.close()


def test_twenty_reconnects_with_kills_see_no_foreign_tokens(served: Daemon) -> None:
    """Each round a process with the same name streams and is killed; then a survivor with the same ids is checked."""
    for i in range(20):
        with streaming(served.runtime) as victim:
            survivor = served.client("same")
            victim.send_signal(signal.SIGKILL if i % 2 else signal.SIGTERM)
            assert survivor.run(f"mine {i}", id="same")[0] == f"mine {i}"
            survivor.close()
    watcher = served.client()
    eventually(lambda: not watcher.status().requests)


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
