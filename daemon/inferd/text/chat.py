"""Chats as requests bring them, made into what templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferd.text.errors import TextError
from inferd_client.protocol import Caps

RESERVED = frozenset(
    {"messages", "tools", "documents", "bos_token", "eos_token", "pad_token", "unk_token", "raise_exception"}
    | {"strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner", "self", "chat_template"}
)
"""Names a request may not set: they are the template's own."""


def template_messages(messages: Sequence[Any], *, tool_calls: bool) -> list[dict[str, Any]]:
    """Check the messages and return them without absent fields. Raises TextError.

    `tool_calls` says that the template can show calls. It then gets answers without content as they
    are, with `content` none, and arguments as objects. A template without is never given calls: that
    they would be lost is an error.
    """
    if not messages:
        raise TextError("there are no messages", "messages")
    return [_message(message, f"messages[{i}]", tool_calls) for i, message in enumerate(messages)]


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse template arguments that are not plain values under free names. Raises TextError."""
    if len(arguments) > Caps.TEMPLATE_ARGS:
        text = f"{len(arguments)} template arguments exceed the limit of {Caps.TEMPLATE_ARGS}"
        raise TextError(text, "template_args")
    for name, value in arguments.items():
        where = f"template_args.{name}"
        if not name.isidentifier() or name.startswith("_") or name in RESERVED:
            raise TextError(f"{name!r} cannot be set by a request", where)
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise TextError("template arguments are strings, numbers, booleans or null", where)


def _message(message: Any, where: str, tool_calls: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TextError("a message is an object with a role", where)
    plain = {key: value for key, value in message.items() if value is not None}
    content, calls = plain.get("content"), plain.get("tool_calls")
    if content is not None and not isinstance(content, str):
        raise TextError("content is text", f"{where}.content")
    if calls and not tool_calls:
        raise TextError("the chat template of this model cannot show tool calls", f"{where}.tool_calls")
    if content is None and not calls and "reasoning_content" not in plain:
        raise TextError("the message has no content", f"{where}.content")
    plain["content"] = content if content is not None or calls else ""
    if calls:
        plain["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return plain


def _call(call: Any, where: str) -> dict[str, Any]:
    """Templates print arguments as objects; the OpenAI form carries them as JSON text."""
    if not isinstance(call, Mapping):
        raise TextError("a tool call is an object", where)
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        raise TextError("arguments are not JSON", f"{where}.function.arguments") from None
    return {**call, "function": {**function, "arguments": arguments}}
