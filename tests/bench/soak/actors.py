"""Who puts load on the daemon in a soak. Each is a thread with clients of its own that works until told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import zmq

from inferd_client import NO_RETRY, Client, Timeouts
from inferd_client.protocol import HEADER, Code
from tests.bench.soak.books import Books
from tests.e2e.harness import Served, alive, model_of

ANSWER_S = 120.0
LOST = (Code.ENGINE_LOST, Code.OVERLOADED)
"""What may happen to any request while workers are killed and the queue is bounded."""
CLIENT_SCRIPT = Path(__file__).parents[2] / "e2e" / "client_process.py"


class Actor(threading.Thread):
    """Repeats `act` until the stop event."""

    def __init__(self, daemon: Served, model: str, books: Books, stop: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.served, self.model, self.books, self.over = daemon, model, books, stop
        self.rng = Random(seed)
        self.label = type(self).__name__.lower()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.act()
            except Exception as error:
                self.books.note_wrong(f"{self.label} itself: {type(error).__name__}: {error}")
                self.over.wait(0.5)

    def act(self) -> None:
        raise NotImplementedError

    def connect(self, label: str = "") -> Client:
        timeouts = Timeouts(connect=30, idle=60, total=ANSWER_S)
        return Client(self.served.runtime, name=label or self.label, timeouts=timeouts, retry=NO_RETRY)

    def prompt(self, most: int = 120) -> list[int]:
        return [self.rng.randrange(40, 250) for _ in range(self.rng.randint(1, most))]

    def sampling(self) -> dict[str, Any]:
        rng = self.rng
        options: dict[str, Any] = {"max_tokens": rng.randint(1, 40), "temperature": rng.choice((0, 0.7, 1.0))}
        if rng.random() < 0.3:
            options |= {"top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1}
        if rng.random() < 0.2:
            options["n"] = rng.randint(2, 3)
        if rng.random() < 0.2:
            options |= {"logprobs": 2, "stop": ["e", "zzz"]}
        if rng.random() < 0.2:
            options |= {"priority": rng.randint(-5, 5)}
        return options


class Caller(Actor):
    """Makes one request after the other, twenty on each connection."""

    def act(self) -> None:
        with self.connect() as client:
            for _ in range(20):
                if self.over.is_set():
                    return
                with self.books.request(self.label, *LOST) as outcome:
                    outcome.append(self.ask(client))

    def ask(self, client: Client) -> str:
        """Make a request; return how it ended."""
        raise NotImplementedError


class User(Caller):
    """Generations and chats that run to their end."""

    def ask(self, client: Client) -> str:
        if self.rng.random() < 0.3:
            text = "".join(self.rng.choice("abcdefgh ") for _ in range(30))
            result = client.chat(text, **self.sampling())
        else:
            result = client.generate(self.prompt(), **self.sampling())
        self.books.note_times(result)
        return str(result.finish)


class Witness(Actor):
    """Asks the same, greedily, and compares: what others do must not show."""

    expected: list[int] | None = None

    def act(self) -> None:
        with self.connect() as client, self.books.request(self.label, *LOST):
            ids = client.generate(list(range(60, 84)), max_tokens=16, temperature=0, ignore_eos=True, seed=3).ids
            if self.expected is None:
                self.expected = ids
            elif ids != self.expected:
                self.books.note_wrong(f"the witness got {ids} for {self.expected}")
        self.over.wait(0.3)


class Pack(Actor):
    """Asks for more at once than the KV pool holds, the same each time: what gives way must not show."""

    size = 6
    rounds = 0
    expected: list[list[int]] | None = None

    def act(self) -> None:
        self.rounds += 1
        more = self.rounds % 30  # what was in flight at two deaths is refused for good: each round differs in length
        with self.connect() as client, self.books.request(self.label, *LOST):
            streams = [
                client.generate(
                    list(range(60 + i, 100 + i)), stream=True, max_tokens=90 + more, ignore_eos=True, seed=i
                )
                for i in range(self.size)
            ]
            found = [stream.result().ids[:90] for stream in streams]
            self.expected = self.expected or found
            if found != self.expected:
                self.books.note_wrong(f"the pack got {found} for {self.expected}")
        self.over.wait(1.0)


class Canceller(Caller):
    """Streams that are left early: by closing, by a cancel, at once or after some pieces."""

    def ask(self, client: Client) -> str:
        stream = client.generate(self.prompt(300), stream=True, max_tokens=200, ignore_eos=True)
        pieces = self.rng.randint(0, 8)
        if self.rng.random() < 0.5:
            for _ in zip(range(pieces), stream, strict=False):
                pass
            stream.close()
            return "closed"
        client.cancel(stream)
        return str(stream.result().finish)


class Deserter(Actor):
    """Clients that vanish: processes killed in mid-stream, and clients closed with work in flight."""

    def act(self) -> None:
        options = {"prompt": self.prompt(), "max_tokens": 300, "ignore_eos": True}
        with self.books.request(self.label) as outcome:
            command = [sys.executable, str(CLIENT_SCRIPT), str(self.served.runtime), json.dumps(options)]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            self.over.wait(self.rng.uniform(0.2, 1.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            outcome.append("killed")
        for _ in range(5):
            with self.books.request(self.label) as outcome:
                client = self.connect()
                streams = [client.generate(self.prompt(), stream=True, max_tokens=100) for _ in range(3)]
                self.over.wait(self.rng.uniform(0, 0.3))
                client.close()
                del streams
                outcome.append("closed")
        self.over.wait(1.0)


class Vandal(Actor):
    """Requests that must be refused, and frames that are none."""

    def act(self) -> None:
        with self.connect() as client:
            for prompt, options, code in self._bad():
                with self.books.request(self.label, code, *LOST) as outcome:
                    result = client.generate(prompt, **options)
                    outcome.append(f"accepted {options} as {result.finish}")
                    self.books.note_wrong(f"not refused: {options}")
        self._rubbish()
        self.over.wait(0.5)

    def _bad(self) -> list[tuple[Any, dict[str, Any], str]]:
        return [
            ([10**9], {}, Code.INVALID_PARAM),
            ([], {}, Code.INVALID_PARAM),
            ([7], {"temperature": -1.0}, Code.INVALID_PARAM),
            ([7], {"logit_bias": {10**8: 1.0}}, Code.INVALID_PARAM),
            ([7] * 10, {"max_tokens": 10**7}, Code.CONTEXT_EXCEEDED),
            ([7], {"model": "no-such-model"}, Code.UNKNOWN_MODEL),
            ([7], {"deadline": 0.001, "max_tokens": 200, "ignore_eos": True}, Code.DEADLINE_EXCEEDED),
        ]

    def _rubbish(self) -> None:
        context = zmq.Context()
        try:
            for name in ("data.sock", "control.sock"):
                socket = context.socket(zmq.DEALER)
                socket.set(zmq.LINGER, 0)
                socket.connect(f"ipc://{self.served.runtime / name}")
                for frames in ([b""], [HEADER], [HEADER, self.rng.randbytes(50)], [b"GET /", b"x"] * 3):
                    socket.send_multipart(frames)
                socket.poll(200)
        finally:
            context.destroy(linger=0)


class Killer(Actor):
    """Ends the engine worker, now and then a text process, until half of the time is over."""

    every_s = 45.0
    """Three deaths within a minute would make the model `failed`, as they should."""
    until = 0.0
    kills = 0

    def act(self) -> None:
        if self.over.wait(self.every_s) or time.monotonic() > self.until:
            self.over.wait()
            return
        with self.connect() as client:
            found = model_of(client, self.model)
            victims = {module: pid for module, pid in self.served.children().items() if "text" in module}
            if found is not None and found.pid is not None:
                victims["engine"] = found.pid
            name = "engine" if "engine" in victims and self.kills % 3 != 2 else next(iter(victims))
            os.kill(victims[name], signal.SIGKILL)
            self.kills += 1
            deadline = time.monotonic() + 60
            while alive(victims[name]) and time.monotonic() < deadline:
                time.sleep(0.05)


class Watcher(Actor):
    """Asks for the status all the time; what it takes is part of the result."""

    def act(self) -> None:
        with self.connect() as client:
            while not self.over.wait(0.5):
                with self.books.timed("status"):
                    client.status()
