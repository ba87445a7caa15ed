"""Who may call: the Host and Origin headers against rebinding and foreign web pages, then the bearer token."""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from .errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .settings import Settings

OPEN_PATHS = frozenset({"/health"})
"""Answered without a token: they tell nothing but that the gateway lives."""


class Guard:
    """ASGI middleware that turns strangers away before a byte of the body is read."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._token = settings.token
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refusal(scope["path"], Headers(scope=scope))) is not None:
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._knows(host_name(hosts[0])):
            text = "the Host header names neither localhost, an IP address nor an allowed host (--allow-host)"
            return ApiError(403, text, kind="permission_error", code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and "*" not in self._origins:
            text = "web pages of this origin may not call the gateway (--cors-origin)"
            return ApiError(403, text, kind="permission_error", code="origin_not_allowed")
        if path in OPEN_PATHS or self._token is None or self._is_token(headers.getlist("authorization")):
            return None
        text = "a bearer token is needed: Authorization: Bearer TOKEN, with the token from the gateway's token file"
        challenge = {"www-authenticate": "Bearer"}
        return ApiError(401, text, kind="authentication_error", code="invalid_api_key", headers=challenge)

    def _knows(self, host: str) -> bool:
        """A name that an attacker's DNS can point here is not known; an address cannot be re-bound."""
        return host == "localhost" or host in self._hosts or _is_address(host)

    def _is_token(self, values: list[str]) -> bool:
        assert self._token is not None
        scheme, _, given = (values[0] if len(values) == 1 else "").partition(" ")
        equal = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return equal and scheme.lower() == "bearer"


def host_name(host: str) -> str:
    """Return the name of a Host header, without port and brackets; empty where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    sound = not parts.username and not parts.path and not parts.query and not parts.fragment
    return (parts.hostname or "").rstrip(".") if sound else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
