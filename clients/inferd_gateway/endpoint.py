"""What the two endpoints that generate have in common: read, plan, answer whole or as a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import JSONResponse

from .body import read_json
from .gateway import Gateway, gateway_of
from .generation import Generation, Part
from .requests import Sampled
from .sse import EventStream, comment, event, while_connected

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Body = TypeVar("Body", bound=Sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(ABC):
    """Work that is on its way at the daemon, and how it is told."""

    generation: Generation
    head: dict[str, Any]
    """What every answer and chunk has."""
    chunk: str
    """`object` of a chunk."""
    wants_usage: bool

    @abstractmethod
    async def whole(self) -> dict[str, Any]:
        """Return the answer in one piece."""

    @abstractmethod
    def entries(self, part: Part) -> list[list[dict[str, Any]]]:
        """Return the `choices` of each chunk that a part makes."""

    async def chunks(self, keep_alive_s: float) -> AsyncGenerator[bytes]:
        """Yield the answer as server-sent events."""
        head = {**self.head, "object": self.chunk}
        usage: dict[str, Any] = {"usage": None} if self.wants_usage else {}
        async with self.generation as generation:
            async for part in generation.parts(keep_alive_s):
                if part is None:
                    yield comment(generation.state)
                    continue
                for choices in self.entries(part):
                    yield event({**head, "choices": choices, **usage})
            if self.wants_usage:
                yield event({**head, "choices": [], "usage": generation.usage})


def endpoint(
    kind: type[Body], plan: Callable[[Gateway, Body], Awaitable[Asked]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of an endpoint. `plan` checks a request and sends it to the daemon."""

    async def handle(request: Request) -> Response:
        gateway = gateway_of(request)
        body = await read_json(request, kind, gateway.settings)
        asked = await plan(gateway, body)
        if body.stream:
            return EventStream(asked.chunks(gateway.settings.keep_alive_s), gateway.settings.send_timeout_s)
        return JSONResponse(await while_connected(request.receive, asked.whole()))

    return handle
