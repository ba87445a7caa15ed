"""Serve the application: uvicorn on a socket of ours, with bounds on what a peer can hold."""

from __future__ import annotations

import ipaddress
import socket

import uvicorn

from .app import make_app
from .settings import Settings

MAX_HEADER_BYTES = 32 * 1024
MAX_CONNECTIONS = 1024
IDLE_S = 30
DRAIN_S = 5


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=256)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_server(settings: Settings) -> uvicorn.Server:
    """Return a server; `serve` or `run` it with a bound socket."""
    config = uvicorn.Config(
        make_app(settings),
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )
    return uvicorn.Server(config)
