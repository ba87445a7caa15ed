"""`GET /health` and `GET /metrics`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, PlainTextResponse

from inferd_client import InferdError

from .gateway import gateway_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CONTENT_TYPE = "text/plain; version=0.0.4"
PATIENCE_S = 2.0
"""With a daemon that should answer in a tenth of a second."""


async def health(request: Request) -> Response:
    """200 when the default model can answer, else 503. Asked without a token, so it tells no more than that."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            status = await gateway_of(request).client.status()
    except (InferdError, TimeoutError):
        return JSONResponse({"status": "no daemon"}, 503)
    if status.state != "serving":
        return JSONResponse({"status": status.state}, 503)
    return JSONResponse({"status": "ok" if status.ready else "loading"}, 200 if status.ready else 503)


async def metrics(request: Request) -> Response:
    return PlainTextResponse(await gateway_of(request).client.metrics(), media_type=CONTENT_TYPE)
