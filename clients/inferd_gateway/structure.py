"""What a chat asks its answer to look like, as a schema or a grammar for the daemon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import invalid, unsupported
from .tools.rules import COMPACT, TEXT

if TYPE_CHECKING:
    from .requests import ChatRequest
    from .template import Spoken

_THOUGHT = (r'thought[lazy]: TEXT "</think>"', r"BREAK: /\n{1,2}/", TEXT)
_ANY_OBJECT = {"type": "object"}


def structure_of(
    body: ChatRequest, tools: Sequence[dict[str, Any]], spoken: Spoken | None, *, inside: bool
) -> dict[str, Any]:
    """Return options of the client library; none where anything goes. Raises ApiError.

    `inside`: the prompt has opened the reasoning, which is free and comes before what is asked for.
    """
    form = response_schema(body)
    if body.structured_outputs is not None:
        if form is not None or spoken is not None:
            raise invalid("structured_outputs", "cannot go with response_format or tools")
        if inside:
            raise unsupported("structured_outputs", "of a model that reasons first; response_format allows for that")
    if spoken is None:
        if form is None:
            return {}
        return {"grammar": _grammar("form", [_form_rule(form)], inside)} if inside else {"json_schema": form}
    forced = chosen_tools(body, tools)
    parallel = body.parallel_tool_calls is not False and not isinstance(body.tool_choice, dict)
    if forced is not None:
        return {"grammar": _grammar("calls", spoken.format.rules(forced, spoken.marker, parallel=parallel), inside)}
    strict = {tool.function.name for tool in body.tools or () if tool.function is not None and tool.function.strict}
    if form is None and parallel and not strict:
        return {}
    rules = spoken.format.rules([_loose(tool, strict) for tool in tools], spoken.marker, parallel=parallel)
    if form is None:
        return {"grammar": _grammar("answer", rules, inside)}
    return {"grammar": _grammar("(calls | form)", [*rules, _form_rule(form)], inside)}


def response_schema(body: ChatRequest) -> dict[str, Any] | None:
    """Return the schema of `response_format`, None where the answer is text. Raises ApiError."""
    wanted = body.response_format
    if wanted is None or wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_object":
        return _ANY_OBJECT
    if wanted.get("type") != "json_schema":
        raise invalid("response_format.type", f"text, json_object or json_schema, got {wanted.get('type')!r}")
    described = wanted.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise invalid("response_format.json_schema", "an object with a JSON Schema as `schema`")
    return schema


def chosen_tools(body: ChatRequest, tools: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]] | None:
    """Return the tools of which one must be called, None where none need be. Raises ApiError."""
    choice = body.tool_choice
    if choice == "required":
        return tools
    if not isinstance(choice, dict):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise unsupported("tool_choice", "an object names one function: {type: function, function: {name}}")
    found = [tool for tool in tools if tool["function"]["name"] == name]
    if not found:
        raise invalid("tool_choice", f"{name!r} is none of the tools")
    return found


def _loose(tool: dict[str, Any], strict: set[str]) -> dict[str, Any]:
    """Where calls are free, only strict tools bind their arguments."""
    function = tool["function"]
    return tool if function["name"] in strict else {"function": {"name": function["name"], "parameters": _ANY_OBJECT}}


def _form_rule(schema: dict[str, Any]) -> str:
    return f"form: %json {json.dumps({**schema, 'x-guidance': COMPACT})}"


def _grammar(goal: str, rules: Sequence[str], inside: bool) -> str:
    start = f"start: thought BREAK? {goal}" if inside else f"start: {goal}"
    return "\n".join(dict.fromkeys([start, *(_THOUGHT if inside else ()), *rules]))
