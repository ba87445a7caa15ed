"""Hostile messages to a real daemon, and a good request beside them that must not notice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import zmq

from inferd_client import protocol as p
from tests.bench.fuzz.mutate import mutate, mutate_value
from tests.e2e.harness import Served

ANSWER_S = 30.0
ROUND = 25
"""Hostile messages between two looks at whether the daemon answers."""
HEADERS = (b"INFD\x01", b"INFD\x02", b"INFD", b"", b"GET / HTTP/1.1", b"INFD\x01\x01")
SAFE = ("hello", "ping", "generate", "tokenize", "render", "cancel", "status", "models", "plugins", "traffic")
"""Kinds of messages that are sent on purpose. Load, unload and drain do what they are told."""


class GoodClient(threading.Thread):
    """Asks the same again and again, and compares."""

    def __init__(self, daemon: Served) -> None:
        super().__init__(daemon=True)
        self._client = daemon.client("good")
        self._over = threading.Event()
        self.expected = self._ask()
        self.asked = 0
        self.differed = 0
        self.failed: list[str] = []
        self.slowest_s = 0.0

    def run(self) -> None:
        while not self._over.is_set():
            start = time.monotonic()
            try:
                self.differed += self._ask() != self.expected
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            self.asked += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - start)
            self._over.wait(0.2)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _ask(self) -> list[int]:
        ids = list(range(40, 60))
        return self._client.generate(ids, max_tokens=12, temperature=0, ignore_eos=True, seed=1).ids


@dataclass
class Sent:
    """What came of hostile messages."""

    messages: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    silences: int = 0
    """Times at which the daemon did not answer a status in time."""


class Attacker:
    """Raw sockets of one client."""

    def __init__(self, runtime: Path, rng: Random) -> None:
        self._rng = rng
        self._context = zmq.Context()
        self._sockets = [self._connect(runtime / name) for name in ("data.sock", "control.sock")]
        self._sound = _sound()
        self._seeds = [*_golden(), *self._sound]
        self.sent = Sent()
        self._session: str | None = None
        self._hello()

    def attack(self, count: int) -> None:
        """Send hostile messages, reading what comes back without waiting for it."""
        for number in range(count):
            socket = self._rng.choice(self._sockets)
            socket.send_multipart(self._frames())
            self.sent.messages += 1
            self._read()
            if (number + 1) % ROUND == 0:
                self._probe()
        self._probe()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _connect(self, path: Path) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.connect(f"ipc://{path}")
        return socket

    def _hello(self) -> None:
        for socket in reversed(self._sockets):
            socket.send_multipart(p.encode(p.Hello(client="hostile", session=self._session)))
            if socket.poll(ANSWER_S * 1000):
                answer = p.decode(socket.recv_multipart(), p.answer_decoder)
                self._session = getattr(answer, "session", self._session)

    def _frames(self) -> list[bytes]:
        rng = self._rng
        frames = [p.HEADER if rng.random() < 0.95 else rng.choice(HEADERS), self._body()]
        if rng.random() < 0.03:
            frames = frames[: rng.randrange(2)] or [b""]
        elif rng.random() < 0.03:
            frames += [rng.randbytes(5)] * rng.randrange(1, 6)
        return frames

    def _body(self) -> bytes:
        """Make a message: sound ones of its own id and their changes, others changed, bytes changed blindly."""
        rng = self._rng
        body = rng.choice(self._sound if rng.random() < 0.7 else self._seeds)
        tree = msgspec.msgpack.decode(body)
        if "id" in tree:
            tree["id"] = f"h{self.sent.messages}"
        kind = rng.random()
        if kind < 0.8:
            try:
                return msgspec.msgpack.encode(tree if kind < 0.15 else mutate_value(rng, tree))
            except (ValueError, OverflowError, TypeError):
                pass  # a value that msgpack cannot carry
        return mutate(rng, body, self._seeds, ())

    def _read(self) -> None:
        for socket in self._sockets:
            while socket.poll(0):
                answer = p.decode(socket.recv_multipart(), p.answer_decoder, max_frame=1 << 30)
                name = str(answer.code) if isinstance(answer, p.Error) else type(answer).__name__
                self.sent.answers[name] += 1

    def _probe(self) -> None:
        """Ask something sound and wait for its answer."""
        control = self._sockets[1]
        wanted = f"probe{self.sent.messages}"
        for socket in self._sockets:  # a hostile hello may have tied them to other sessions
            socket.send_multipart(p.encode(p.Hello(client="hostile", session=self._session)))
        control.send_multipart(p.encode(p.Models(id=wanted)))
        end = time.monotonic() + ANSWER_S
        while (left := end - time.monotonic()) > 0:
            if control.poll(left * 1000):
                answer = p.decode(control.recv_multipart(), p.answer_decoder, max_frame=1 << 30)
                if getattr(answer, "id", None) == wanted:
                    return
        self.sent.silences += 1


def _golden() -> list[bytes]:
    """One message of each kind that is safe to send, with every field set."""
    from tests.client.golden_messages import CONTROL, DATA

    return [p.encode(m)[1] for m in (*DATA, *CONTROL) if m.__struct_config__.tag in SAFE]


def _sound() -> list[bytes]:
    """Requests that this daemon serves."""
    sampling = p.SamplingParams(max_tokens=4)
    messages: list[Any] = [
        p.Generate(id="a", prompt_ids=[40, 41, 42], sampling=sampling),
        p.Generate(id="b", prompt="hello there", sampling=sampling),
        p.Generate(id="c", messages=[p.Message(role="user", content="hello")], sampling=sampling),
        p.Tokenize(id="d", text="hello"),
    ]
    return [p.encode(message)[1] for message in messages]
