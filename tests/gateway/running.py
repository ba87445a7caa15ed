"""A gateway in a thread of the test, over a daemon."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openai import OpenAI

from inferd_gateway import Settings
from inferd_gateway.server import bind, make_server

TOKEN = "test-token-0123456789"
WAIT_S = 60.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events, comments left out."""
        lines = [line for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


@dataclass(frozen=True)
class Running:
    port: int
    token: str | None = TOKEN

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def openai(self, **options: Any) -> OpenAI:
        return OpenAI(
            base_url=self.url, api_key=self.token or "none", **{"max_retries": 0, "timeout": WAIT_S} | options
        )

    def raw(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send one request as it stands; the token and the JSON type are added where nothing else is said."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            given.setdefault("authorization", f"Bearer {self.token}")
        if body is not None:
            given.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {name: value for name, value in given.items() if value})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, **fields: Any) -> Reply:
        return self.raw("POST", path, json.dumps(fields).encode())

    def chat(self, content: Any = "hi", **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", **{"messages": [{"role": "user", "content": content}]} | fields)


@contextmanager
def gateway(runtime: Path, **settings: Any) -> Iterator[Running]:
    """Run a gateway of the daemon in `runtime`."""
    made = replace(Settings(runtime=runtime, token=TOKEN), **settings)
    listener = bind("127.0.0.1", 0)
    server = make_server(made)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: server.started)
        yield Running(listener.getsockname()[1], made.token)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def eventually(is_so: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
