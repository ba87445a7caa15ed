"""A client that comes back under its old routing id (6.6): it gets answers, and none of another session's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from inferd_client import protocol as p
from tests.front.harness import Daemon, Raw, daemon, eventually, worker_pid


class Named(Raw):
    """A client whose sockets carry a fixed routing id, as a program might set that is started again."""

    def _connect(self, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.ROUTING_ID, b"the same")
        socket.connect(f"ipc://{self.runtime / name}")
        return socket

    def hello(self) -> p.Welcome:
        """The daemon refuses a routing id while it holds the connection before: connect anew until it is gone.

        A connection that was refused for its id stays refused, so asking again on it would wait for ever.
        """
        self.control = self._greeted("control.sock", self.control)
        self.data = self._greeted("data.sock", self.data)
        return self.welcome

    def _greeted(self, name: str, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        while True:
            socket.send_multipart(p.encode(p.Hello(client=self.name, session=self.session)))
            answer = self._receive(socket, 0.5)
            if isinstance(answer, p.Welcome):
                self.session, self.welcome = answer.session, answer
                return socket
            socket.close(linger=0)
            socket = self._connect(name)


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with daemon(delay_s=0.005, context=100_000) as running:
        worker_pid(running.client("warm"))
        yield running


def everything(client: Raw, seconds: float) -> list[Any]:
    end, found = time.monotonic() + seconds, []
    while (left := end - time.monotonic()) > 0:
        if (message := client.receive(left)) is not None:
            found.append(message)
    return found


def test_no_output_of_the_session_before_reaches_the_next(served: Daemon) -> None:
    for turn in range(5):
        first = Named(Path(served.runtime))
        old = first.generate("secret", ignore_eos=True, id="old")
        first.until(old, p.Tokens)
        first.close()
        second = Named(Path(served.runtime))
        assert second.session != first.session
        seen = everything(second, 0.3)
        assert not [m for m in seen if getattr(m, "id", None) == old], seen[:2]
        assert second.run(f"mine {turn}", id="old")[0] == f"mine {turn}"
        second.close()
    watcher = served.client()
    eventually(lambda: not watcher.status().requests)
