"""The ASGI application: routes, errors, and who may call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inferd_client import InferdError

from .chat import chat
from .completions import completions
from .errors import ApiError, explain
from .gateway import Gateway
from .guard import Guard
from .health import health, metrics
from .models import model, models
from .sse import ClientGone

if TYPE_CHECKING:
    from starlette.requests import Request

    from .settings import Settings


def make_app(settings: Settings) -> Starlette:
    """Return the application. Nothing is sent to the daemon before the first request."""
    gateway = Gateway(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await gateway.client.close()

    app = Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        middleware=_middleware(settings),
        exception_handlers={
            ApiError: _answer,
            InferdError: _answer,
            HTTPException: _http_error,
            ClientGone: _nobody,
            Exception: _answer,
        },
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    """A preflight has no token, so CORS is asked first; without allowed pages there is none."""
    guard = Middleware(Guard, settings=settings)
    if not settings.cors_origins:
        return [guard]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
    )
    return [cors, guard]


async def _answer(request: Request, error: Exception) -> Response:
    failure = explain(error)
    return JSONResponse(failure.body, failure.status, failure.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    failure = ApiError(error.status_code, text, code="not_found" if error.status_code == 404 else None)
    return JSONResponse(failure.body, failure.status, error.headers)


async def _nobody(request: Request, error: Exception) -> Response:
    """The client is gone: this answer reaches nobody."""
    return Response(status_code=499)
