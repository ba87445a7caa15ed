"""One or more streams of the daemon as a single flow of numbered pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Self

from inferd_client import AsyncStream, Piece
from inferd_client.protocol import Usage

from .errors import UNAVAILABLE, ApiError

MAX_WAITING = 32
"""Pieces read ahead of the HTTP client."""


class Part(NamedTuple):
    """A piece, and the choice it belongs to over all prompts."""

    choice: int
    piece: Piece


class Generation:
    """Use in `async with`: leaving ends at the daemon whatever still runs."""

    def __init__(self, streams: Sequence[AsyncStream], n: int) -> None:
        self._streams = streams
        self._n = n
        self._queue: asyncio.Queue[Part | Exception | None] = asyncio.Queue(MAX_WAITING)
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def num_choices(self) -> int:
        return len(self._streams) * self._n

    async def __aenter__(self) -> Self:
        self._pumps = [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(self._streams)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for stream in self._streams:
            await stream.close()

    async def parts(self, tick: float | None = None) -> AsyncIterator[Part | None]:
        """Yield every piece, and None after each `tick` of silence. Raises InferdError, ApiError."""
        left = len(self._streams)
        while left:
            try:
                async with asyncio.timeout(tick):
                    item = await self._queue.get()
            except TimeoutError:
                yield None
                continue
            if item is None:
                left -= 1
                continue
            if isinstance(item, Exception):
                raise item
            if item.piece.finish in ("cancelled", "error"):
                raise ApiError(503, "the request was cancelled at the daemon", kind=UNAVAILABLE, code="cancelled")
            yield item

    @property
    def usage(self) -> dict[str, Any]:
        """What it cost, once all streams have ended."""
        return usage_of([stream.completion.usage for stream in self._streams if stream.completion.usage is not None])

    @property
    def state(self) -> str:
        """Where the request stands, for the comment that keeps a connection alive."""
        progress = next((stream.progress for stream in self._streams if stream.progress is not None), None)
        if progress is None:
            return "waiting"
        return f"{progress.state} {progress.done}/{progress.total}" if progress.total else progress.state

    async def _pump(self, number: int, stream: AsyncStream) -> None:
        try:
            async for piece in stream:
                await self._queue.put(Part(number * self._n + piece.choice, piece))
        except Exception as error:  # noqa: BLE001 - raised again by the reader
            await self._queue.put(error)
        else:
            await self._queue.put(None)


def usage_of(usages: Sequence[Usage]) -> dict[str, Any]:
    """Return the sum in OpenAI's form."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }
