"""Messages of the OpenAI API as messages of the protocol."""

from __future__ import annotations

import re
from typing import Any

from inferd_client.protocol import Caps, Message

from .errors import ApiError, invalid, unsupported
from .requests import ChatMessage, Part, Tool

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def as_messages(messages: list[ChatMessage]) -> list[Message]:
    """Return the chat. Raises ApiError for what a text model cannot take."""
    if not 0 < len(messages) <= Caps.MESSAGES:
        raise invalid("messages", f"1 to {Caps.MESSAGES} messages, got {len(messages)}")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: ChatMessage, where: str) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}, got {message.role!r}")
    if message.function_call is not None:
        raise unsupported(f"{where}.function_call", "replaced by tool_calls")
    if message.tool_calls and role != "assistant":
        raise invalid(f"{where}.tool_calls", "only messages of the assistant have tool calls")
    if role == "tool" and not message.tool_call_id:
        raise invalid(f"{where}.tool_call_id", "a message of a tool names the call that it answers")
    return Message(
        role=role,
        content=_content(message.content, f"{where}.content"),
        name=message.name,
        tool_calls=[_call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(message.tool_calls or ())] or None,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )


def _content(content: str | list[Part] | None, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "".join(_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _text(part: Part, where: str) -> str:
    text = {"text": part.text, "refusal": part.refusal}.get(part.type)
    if text is not None:
        return text
    if part.type in ("text", "refusal"):
        raise invalid(f"{where}.{part.type}", "is missing")
    raise unsupported(where, f"parts of type {part.type!r} cannot be taken: this server has text models only")


def _call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise invalid(where, "a tool call is {id, type: function, function: {name, arguments}}")
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise invalid(f"{where}.function", "name and arguments are strings, the latter holding JSON")
    return {"id": str(call.get("id") or ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def as_tools(tools: list[Tool] | None) -> list[dict[str, Any]]:
    """Return the tools for the template. Raises ApiError."""
    if len(tools or ()) > MAX_TOOLS:
        raise invalid("tools", f"at most {MAX_TOOLS}, got {len(tools or ())}")
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    function = tool.function
    if tool.type != "function" or function is None:
        raise _no_tool(where, tool.type)
    if not _NAME.fullmatch(function.name):
        raise invalid(f"{where}.function.name", "1 to 64 letters, digits, underscores, dots and hyphens")
    described = {"description": function.description} if function.description is not None else {}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": function.name, **described, "parameters": parameters}}


def _no_tool(where: str, kind: str) -> ApiError:
    if kind == "function":
        return invalid(f"{where}.function", "is missing")
    return unsupported(f"{where}.type", f"only tools of type function, got {kind!r}")
