"""Over tcp: encrypted, only for listed keys, each with its role; what a key loses it loses at once."""

from __future__ import annotations

import json
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

import inferd_client as ic
from inferd.front.zap import Zap
from inferd.keys import KeyStore, Pair
from inferd_client import protocol as p
from inferd_client.endpoints import Endpoints
from tests.front.harness import WAIT_S, Daemon, eventually, launch, worker_pid
from tests.ports import free_port

pytestmark = pytest.mark.skipif(not zmq.has("curve"), reason="libzmq without CURVE")

QUICK = ic.Timeouts(connect=0.7, reconnect=0.7)
"""For those who must not get in."""
CUT_OFF = ic.Timeouts(connect=WAIT_S, reconnect=0.7)
"""For those who get in first."""


class Place:
    """A daemon on tcp, and keys for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = KeyStore(folder / "run-state")
        self.address = f"tcp://127.0.0.1:{free_port(3)}"
        self.endpoints = Endpoints.tcp(self.address)
        self.daemon: Daemon | None = None

    def key(self, name: str, role: Any = None) -> Path:
        """Write a key file, and allow it if a role is given."""
        pair, server = Pair.new(), self.store.server(make=True)
        assert server is not None
        if role:
            self.store.allow(name, pair.public_key, role)
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_text(
            f'server = "{self.address}"\nserver_key = "{server.public_key}"\n'
            f'public_key = "{pair.public_key}"\nsecret_key = "{pair.secret_key}"\n'
        )
        return path

    def start(self, **script: Any) -> Daemon:
        config = {"daemon": {"tcp": self.address, "heartbeat_s": 0.2}}
        self.daemon = launch(self.folder / "run", config=config, **script)
        return self.daemon

    def client(self, name: str, **options: Any) -> ic.Client:
        return ic.Client(key_file=self.folder / f"{name}.key", name=name, retry=ic.NO_RETRY, **options)


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="infd"))
    made = Place(folder)
    yield made
    if made.daemon is not None:
        for client in made.daemon.clients:
            client.close()
        made.daemon.process.kill()
        made.daemon.process.wait()
    shutil.rmtree(folder)


@pytest.fixture
def running(place: Place) -> Place:
    """With a user, an admin, and a daemon whose answers never end by themselves."""
    place.key("alice", "user")
    place.key("root", "admin")
    place.start(models=["one", "two"], delay_s=0.005)
    return place


class TestWhoGetsIn:
    def test_a_listed_key_works_and_ipc_goes_on(self, running: Place) -> None:
        assert running.daemon
        with running.client("alice") as client:
            assert client.generate("over the wire").text == "over the wire"
            assert client.daemon
            assert client.daemon.role == "user"
        with running.client("root") as client:
            assert client.status().ready
            assert client.daemon
            assert client.daemon.role == "admin"
        local = running.daemon.client()
        assert local.welcome.role == "admin"
        assert local.run("by ipc")[0] == "by ipc"

    def test_an_unlisted_key_a_plain_client_and_an_impostor_get_nothing(self, running: Place) -> None:
        running.key("stranger")
        with running.client("stranger", timeouts=QUICK) as client, pytest.raises(ic.ConnectionFailed):
            client.status()
        with (
            ic.Client(endpoints=running.endpoints, timeouts=QUICK) as client,
            pytest.raises(ic.ConnectionFailed),
        ):
            client.status()
        assert running.daemon
        logged = [json.loads(line) for line in running.daemon.logged().splitlines() if "client refused" in line]
        stranger = ic.KeyFile.load(running.folder / "stranger.key").curve.public_key.decode()
        assert [(line["address"], line["key"]) for line in logged] == [
            ("127.0.0.1", stranger)
        ]  # once, not at every try
        other = Pair.new()
        path = running.folder / "alice.key"
        server = running.store.server()
        assert server
        path.write_text(path.read_text().replace(server.public_key, other.public_key))
        with running.client("alice", timeouts=QUICK) as client, pytest.raises(ic.ConnectionFailed):
            client.status()
        with running.client("root") as client:
            assert client.status().clients == 1

    def test_noise_on_the_port_hurts_nobody(self, running: Place) -> None:
        port = int(running.address.rpartition(":")[2])
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE" + b"\0" * 60):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(noise)
        with running.client("alice") as client:
            assert client.generate("still here").text == "still here"

    def test_the_size_limit_holds_on_tcp(self, running: Place) -> None:
        limit = p.MAX_FRAME
        with running.client("alice") as client:
            assert client.status()
            raw = raw_socket(running, "alice", running.endpoints.data)
            raw.send_multipart([p.HEADER, b"x" * (limit + 1)])
            raw.send_multipart(p.encode(p.Ping()))
            assert raw.poll(WAIT_S * 1000)
            answer = p.decode(raw.recv_multipart(), p.answer_decoder)
            assert answer.code == p.Code.UNAUTHORIZED  # of the ping, on a new connection: the large one was never read
            assert client.generate("others go on").text == "others go on"
            raw.context.destroy(0)


def raw_socket(place: Place, name: str, endpoint: str) -> zmq.Socket[bytes]:
    keys = ic.KeyFile.load(place.folder / f"{name}.key").curve
    sock = zmq.Context().socket(zmq.DEALER)
    sock.linger = 0
    keys.apply(sock)
    sock.connect(endpoint)
    return sock


def ask(sock: zmq.Socket[bytes], message: p.Request) -> Any:
    sock.send_multipart(p.encode(message))
    assert sock.poll(WAIT_S * 1000)
    return p.decode(sock.recv_multipart(), p.answer_decoder)


@given(st.lists(st.binary(max_size=40), max_size=9))
def test_whatever_is_asked_is_answered_and_lets_nobody_in(frames: list[bytes]) -> None:
    reply = ZAP.verdict(frames)
    assert (len(reply), reply[2], reply[4]) == (6, b"400", b"")
    curve = [b"1.0", b"1", b"user", b"::1", b"id", b"CURVE", b"k" * 32]
    assert ZAP.verdict(curve)[2] == b"400"


class Nobody:
    """An allow-list with no entry."""

    def find(self, public_key: str) -> None:
        assert len(public_key) == 40


ZAP = Zap(zmq.Context(), Nobody())


class TestRoles:
    @pytest.mark.parametrize(
        "call",
        [
            lambda c: c.load("two"),
            lambda c: c.unload("one"),
            lambda c: c.drain(0),
            lambda c: c.cancel("x", anywhere=True),
            lambda c: c.generate("x", model="/etc/passwd"),
            lambda c: c.generate("x", model="other.gguf"),
            lambda c: c.tokenize("x", model="./two"),
            lambda c: c.render("x", model="/two"),
            lambda c: c.generate("x", keep_alive_s=-1),
            lambda c: c.generate("x", priority=1),
        ],
    )
    def test_a_user_is_refused_what_an_admin_may(self, roles: Place, call: Any) -> None:
        with roles.client("alice") as client:
            with pytest.raises(ic.Unauthorized, match="needs the role admin"):
                call(client)
            assert client.generate("goes on", priority=-5, max_tokens=3).finish == "length"

    def test_an_admin_may(self, roles: Place) -> None:
        with roles.client("root") as client:
            client.load("two")
            client.unload("two")
            assert client.generate("x", priority=1, keep_alive_s=-1, max_tokens=1).finish == "length"
            with client.events() as events:
                assert next(iter(events)).version

    def test_a_user_sees_its_own_requests_only_and_no_events(self, roles: Place) -> None:
        with roles.client("alice") as alice, roles.client("root") as root:
            mine = alice.generate("mine", stream=True, ignore_eos=True)
            theirs = root.generate("theirs", stream=True, ignore_eos=True)
            next(iter(mine)), next(iter(theirs))
            assert [r.client.partition("#")[0] for r in alice.status().requests] == ["alice"]
            assert {r.client.partition("#")[0] for r in root.status().requests} == {"alice", "root"}
            mine.close()
            theirs.close()
            sock = zmq.Context().socket(zmq.SUB)
            sock.linger = 0
            ic.KeyFile.load(roles.folder / "alice.key").curve.apply(sock)
            sock.subscribe(b"")
            sock.connect(roles.endpoints.events)
            assert not sock.poll(700)
            sock.context.destroy(0)

    def test_a_session_belongs_to_its_key(self, roles: Place) -> None:
        """Who learns the token of an admin cannot become it."""
        with roles.client("root") as root:
            root.status()
            sock = raw_socket(roles, "root", roles.endpoints.control)
            token = ask(sock, p.Hello()).session
            thief = raw_socket(roles, "alice", roles.endpoints.control)
            welcome = ask(thief, p.Hello(session=token))
            assert (welcome.resumed, welcome.role) == (False, "user")
            assert welcome.session != token
            sock.context.destroy(0)
            thief.context.destroy(0)


@pytest.fixture(scope="module")
def roles() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="infd"))
    made = Place(folder)
    made.key("alice", "user")
    made.key("root", "admin")
    daemon = made.start(models=["one", "two"], delay_s=0.005)
    worker_pid(daemon.client())
    yield made
    daemon.clients[0].close()
    daemon.process.kill()
    daemon.process.wait()
    shutil.rmtree(folder)


class TestRevoking:
    def test_what_a_revoked_client_had_ends_and_it_is_locked_out(self, running: Place) -> None:
        with running.client("root") as root, running.client("alice", timeouts=CUT_OFF) as alice:
            stream = alice.generate("endless", stream=True, ignore_eos=True, max_tokens=4000)
            next(iter(stream))
            assert root.status().requests
            running.store.revoke("alice")
            eventually(lambda: not root.status().requests)
            with pytest.raises((ic.InferdError, ic.ConnectionFailed)):
                for _ in stream:
                    pass
            with running.client("alice", timeouts=QUICK) as again, pytest.raises(ic.InferdError):
                again.status()
            assert root.generate("others go on").text == "others go on"

    def test_a_new_client_and_a_new_role_need_no_restart(self, running: Place) -> None:
        running.key("bob", "user")
        with running.client("bob") as bob:
            with pytest.raises(ic.Unauthorized):
                bob.load("two")
            keys = ic.KeyFile.load(running.folder / "bob.key").curve
            running.store.allow("bob", keys.public_key.decode(), "admin")
            bob.load("two")

    def test_a_follower_of_events_is_cut_off(self, running: Place) -> None:
        with running.client("root") as root:
            root.status()
            sock = zmq.Context().socket(zmq.SUB)
            sock.linger = 0
            ic.KeyFile.load(running.folder / "root.key").curve.apply(sock)
            sock.subscribe(b"")
            sock.connect(running.endpoints.events)
            assert sock.poll(WAIT_S * 1000)
            running.store.revoke("root")
            until = time.monotonic() + WAIT_S
            while sock.poll(1500):
                sock.recv_multipart()
                assert time.monotonic() < until, "it still hears events"
            sock.context.destroy(0)
        running.key("other", "admin")
        with running.client("other") as other, other.events() as events:
            assert next(iter(events)).version

    def test_a_broken_list_lets_nobody_in(self, running: Place) -> None:
        with running.client("alice", timeouts=CUT_OFF) as alice:
            assert alice.status()
            running.store.clients_file.write_text("[clients.alice")
            eventually(lambda: not is_let_in(running, "alice"))
            with pytest.raises(ic.InferdError):
                alice.generate("x", timeouts=QUICK)


def is_let_in(place: Place, name: str) -> bool:
    with place.client(name, timeouts=QUICK) as client:
        try:
            return client.status() is not None
        except ic.InferdError:
            return False


class TestStart:
    def refused(self, place: Place, tcp: str | None = None) -> str:
        arguments = ["--runtime", str(place.folder / "run"), "--state", str(place.folder / "run-state")]
        config = json.dumps({"daemon": {"tcp": tcp or place.address}})
        done = subprocess.run(
            [sys.executable, "-m", "inferd.front.fake", *arguments, "--config", config],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (78, 1), done.stderr
        assert not (place.folder / "run" / "control.sock").exists()
        return done.stderr

    def test_without_keys_the_remedy_is_named(self, place: Place) -> None:
        text = self.refused(place)
        assert "allow-list" in text
        assert "inferd keys new NAME --role user" in text
        assert not (place.folder / "run").exists()

    def test_files_that_others_can_read_are_refused(self, place: Place) -> None:
        place.key("alice", "user")
        for name in ("clients.toml", "server.toml"):
            file = place.store.folder / name
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            file.chmod(0o640)
            assert f"chmod 600 {file}" in self.refused(place)
            file.chmod(0o600)

    @pytest.mark.parametrize("tcp", ["tcp://*", "5555", "tcp://h:65534", "tcp://a b:1", "ipc:///x", "tcp://h:0"])
    def test_an_address_that_is_none(self, place: Place, tcp: str) -> None:
        place.key("alice", "user")
        assert "is not tcp://HOST:PORT" in self.refused(place, tcp)

    def test_a_port_in_use_leaves_nothing_behind(self, place: Place) -> None:
        place.key("alice", "user")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int(place.address.rpartition(":")[2]) + 1))
            taken.listen()
            assert "Address already in use" in self.refused(place)
