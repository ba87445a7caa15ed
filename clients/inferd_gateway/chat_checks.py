"""Refuse what a chat asks for and would not get; the rest of what is unknown is ignored."""

from __future__ import annotations

from typing import Any

from .errors import invalid, unsupported
from .requests import ChatRequest

_ABSENT = ("functions", "function_call", "audio", "prediction", "web_search_options")


def check_chat(body: ChatRequest) -> None:
    """Raises ApiError naming the parameter."""
    for name in _ABSENT:
        if getattr(body, name) not in (None, "none", []):
            raise unsupported(name, "is not supported")
    if body.modalities not in (None, ["text"]):
        raise unsupported("modalities", "only text")
    _check_tool_choice(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "only allowed when logprobs is true")
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise invalid("max_completion_tokens", "differs from max_tokens, its older name")


def _check_tool_choice(body: ChatRequest) -> None:
    choice = body.tool_choice
    if choice is None or choice == "none":
        return
    if not isinstance(choice, dict) and choice not in ("auto", "required"):
        raise invalid("tool_choice", f"none, auto, required or a function, got {choice!r}")
    if not body.tools:
        raise invalid("tool_choice", "only allowed when tools are given")


def template_args(body: ChatRequest) -> dict[str, Any]:
    """Return the names a chat adds to its template."""
    arguments = dict(body.chat_template_kwargs or {})
    if body.enable_thinking is not None:
        arguments["enable_thinking"] = body.enable_thinking
    if body.reasoning_effort is not None:
        arguments["reasoning_effort"] = body.reasoning_effort
    return arguments
