"""Server-sent events, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import JSONResponse, Response

from inferd_client import InferdError

from .errors import ApiError, explain

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, cancelled when the client goes away. Raises ClientGone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends frames as they come. What fails before the first of them is answered with a status of its own."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes], send_timeout_s: float) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._send_timeout_s = send_timeout_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._run(scope, receive, send))
        except (ClientGone, TimeoutError):
            return  # leaving ends the connection and has closed the generation

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            try:
                async for frame in frames:
                    await self._send(send, frame)
                await self._send(send, DONE, last=True)
            except (InferdError, ApiError) as error:
                failure = explain(error)
                if self._started:
                    await self._send(send, event(failure.body), last=True)
                else:
                    await JSONResponse(failure.body, failure.status, failure.headers)(scope, receive, send)

    async def _send(self, send: Send, body: bytes, *, last: bool = False) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": body, "more_body": not last})
