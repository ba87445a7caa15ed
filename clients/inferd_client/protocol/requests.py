"""What a client sends: Hello and Ping on either socket, work on data, the rest on control."""

from __future__ import annotations

from typing import Any

from .base import Request
from .codes import MAJOR, MINOR
from .sampling import SamplingParams


class Message(Request):
    """One turn of a chat. `content` None is allowed where tool calls stand instead."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Hello(Request, tag="hello"):
    """First message on a connection, on each socket. `session` resumes an earlier one."""

    major: int = MAJOR
    minor: int = MINOR
    client: str = ""
    session: str | None = None


class Ping(Request, tag="ping"):
    """Heartbeat; answered by `pong`. Any traffic counts as one."""

    nonce: int = 0


class Generate(Request, tag="generate"):
    """Continue a prompt, or answer a chat. Exactly one of prompt, prompt_ids, messages is set."""

    id: str
    model: str = ""
    """Empty = the daemon's default model."""
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    template_args: dict[str, Any] = {}
    """Extra names for the chat template (e.g. enable_thinking); scalars only."""
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    """-100 to 100; higher runs first."""
    deadline_ms: int | None = None
    """Whole time allowed from arrival; `deadline_exceeded` after it."""
    queue_timeout_ms: int | None = None
    """Longest wait for a first slot."""
    special_tokens: bool = False
    """Text prompt: True lets text that spells a special token become that token."""
    keep_alive_s: float | None = None
    """Keep the model loaded this long after the request; negative = for ever."""
    record: bool = True
    """Whether its lengths enter the traffic record; a load generator says False."""


class Tokenize(Request, tag="tokenize"):
    id: str
    model: str = ""
    text: str = ""
    add_bos: bool = True
    special_tokens: bool = False


class Render(Request, tag="render"):
    """Dry run of the chat template: text and ids, nothing generated."""

    id: str
    messages: list[Message]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    template_args: dict[str, Any] = {}


class Cancel(Request, tag="cancel"):
    """Cancel a request of this session; idempotent. `id` names the cancel call itself."""

    id: str
    request: str
    anywhere: bool = False
    """Requests of this id in every session; needs the role admin."""


class Status(Request, tag="status"):
    id: str


class Models(Request, tag="models"):
    id: str


class Load(Request, tag="load"):
    id: str
    model: str
    keep_alive_s: float | None = None


class Unload(Request, tag="unload"):
    """Unload when its running requests are done; `force` cancels them."""

    id: str
    model: str
    force: bool = False


class Plugins(Request, tag="plugins"):
    id: str


class Traffic(Request, tag="traffic"):
    """Ask for the traffic record; `clear` forgets it afterwards and needs the role admin."""

    id: str
    model: str = ""
    """Empty = all models."""
    clear: bool = False


class Metrics(Request, tag="metrics"):
    """Ask for all metrics as Prometheus text."""

    id: str


class Drain(Request, tag="drain"):
    """Stop accepting, finish what runs within `timeout_s`, then exit."""

    id: str
    timeout_s: float | None = None
