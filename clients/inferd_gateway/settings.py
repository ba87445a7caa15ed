"""What the operator decides about the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Frozen; made once by the command."""

    runtime: Path | None = None
    """The daemon's folder of sockets; None = the usual one."""
    key_file: Path | None = None
    """In place of a folder: the key of a daemon on tcp, which says where it is."""
    token: str | None = None
    """What clients must present; None = nobody is asked."""
    allowed_hosts: tuple[str, ...] = ()
    """Names accepted in the Host header, besides localhost and IP addresses."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call; none by default."""
    max_body: int = 6 * 1024 * 1024
    """Bytes of a request. Less than a frame of the protocol, which carries it on."""
    body_timeout_s: float = 30.0
    """For a request's body to arrive."""
    request_timeout_s: float = 600.0
    """For an answer in all; the daemon watches it."""
    send_timeout_s: float = 60.0
    """For a client to take a piece of a stream."""
    keep_alive_s: float = 10.0
    """Silence of a stream before a comment says that it lives."""
    tool_format: str = "auto"
    """How the model writes tool calls: auto, hermes, llama3 or mistral."""
