"""Read a request's JSON body within bounds, typed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.requests import ClientDisconnect

from inferd_client.protocol import field_of

from .errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from .settings import Settings

T = TypeVar("T")


async def read_json(request: Request, kind: type[T], settings: Settings) -> T:
    """Return the body as `kind`. Raises ApiError: 400, 408, 413 or 415."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, "the Content-Type of a request is application/json", code="unsupported_media_type")
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            raw = await _read(request, settings.max_body)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive in {settings.body_timeout_s:g} s", code="timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away before its request was read") from None
    return decode(raw, kind)


async def _read(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, f"the body exceeds {limit} bytes", code="request_too_large")
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > limit:
        raise too_large
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > limit:
            raise too_large
    return bytes(parts)


def decode(raw: bytes, kind: type[T]) -> T:
    """Return JSON as `kind`. Raises ApiError naming the field."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        field = field_of(str(error))
        raise ApiError(400, str(error), code="invalid_type", param=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
