"""From the arguments of a method to the message it sends. Shared by both faces; raises InvalidParam early."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import msgspec

from . import protocol as p
from .call import Asked
from .errors import InvalidParam
from .options import RetryPolicy, Timeouts

SAMPLING_FIELDS = frozenset(p.SamplingParams.__struct_fields__)
MAX_ID = p.Caps.ID_CHARS - 8
"""Leaves room for the number of the try."""

Messages = str | Sequence[p.Message | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Planned:
    """A call about to be made; None = the client's own setting."""

    message: Asked
    timeouts: Timeouts | None = None
    retry: RetryPolicy | None = None
    on_progress: Callable[[p.Progress], object] | None = None


def new_id() -> str:
    return secrets.token_hex(8)


def plan_generate(prompt: str | Sequence[int], options: Mapping[str, Any]) -> Planned:
    """Plan a generation from text or token ids. Raises InvalidParam, TypeError for an unknown option."""
    if isinstance(prompt, str):
        return _plan_work({"prompt": prompt}, options)
    try:
        ids = [index(i) for i in prompt]  # numpy's integers too, but no float
    except TypeError as error:
        raise InvalidParam(f"prompt: token ids are integers: {error}", field="prompt_ids") from None
    return _plan_work({"prompt_ids": ids}, options)


def plan_chat(messages: Messages, options: Mapping[str, Any]) -> Planned:
    """Plan the answer to a chat. Raises InvalidParam, TypeError for an unknown option."""
    rest = dict(options)
    fields: dict[str, Any] = {"messages": as_messages(messages)}
    if (tools := rest.pop("tools", None)) is not None:
        fields["tools"] = list(tools)
    fields["template_args"] = dict(rest.pop("template_args", {}))
    return _plan_work(fields, rest)


def plan_render(
    messages: Messages, model: str, tools: Sequence[dict[str, Any]] | None, template_args: Mapping[str, Any] | None
) -> Planned:
    return Planned(
        p.Render(
            id=new_id(),
            messages=as_messages(messages),
            model=model,
            tools=None if tools is None else list(tools),
            template_args=dict(template_args or {}),
        )
    )


def as_messages(messages: Messages) -> list[p.Message]:
    """Return `messages` typed; a plain string is one turn of the user. Raises InvalidParam."""
    if isinstance(messages, str):
        return [p.Message(role="user", content=messages)]
    try:
        return [m if isinstance(m, p.Message) else msgspec.convert(m, p.Message) for m in messages]
    except msgspec.ValidationError as error:
        raise InvalidParam(f"messages: {error}", field="messages") from None


def _plan_work(what: dict[str, Any], options: Mapping[str, Any]) -> Planned:
    rest = dict(options)
    planned = {name: rest.pop(name) for name in ("timeouts", "retry", "on_progress") if name in rest}
    fields: dict[str, Any] = {"id": rest.pop("request_id", None) or new_id(), **what}
    for name in ("model", "priority", "special_tokens", "keep_alive_s", "record"):
        if name in rest:
            fields[name] = rest.pop(name)
    for name, wire_name in (("deadline", "deadline_ms"), ("queue_timeout", "queue_timeout_ms")):
        if (seconds := rest.pop(name, None)) is not None:
            fields[wire_name] = _milliseconds(seconds, name)
    fields["sampling"] = as_sampling(rest.pop("sampling", None), rest)
    _check_id(fields["id"])
    try:
        return Planned(msgspec.convert(fields, p.Generate), **planned)
    except msgspec.ValidationError as error:
        raise InvalidParam(str(error), field=p.field_of(str(error))) from None


def _milliseconds(seconds: float, name: str) -> int:
    if not seconds > 0 or math.isinf(seconds):
        raise InvalidParam(f"{name}: must be a finite number of seconds above 0, got {seconds}", field=name)
    return max(1, round(seconds * 1000))


def as_sampling(base: p.SamplingParams | None, changes: Mapping[str, Any]) -> p.SamplingParams:
    """Return `base` with `changes`, checked. Raises InvalidParam, TypeError for a name that is no field."""
    if unknown := sorted(set(changes) - SAMPLING_FIELDS):
        raise TypeError(f"unknown option {unknown[0]!r}; sampling takes {', '.join(sorted(SAMPLING_FIELDS))}")
    fields = {**msgspec.structs.asdict(base or p.SamplingParams()), **changes}
    if isinstance(fields["stop"], str):
        fields["stop"] = (fields["stop"],)
    try:
        sampling = msgspec.convert(fields, p.SamplingParams)
    except msgspec.ValidationError as error:
        raise InvalidParam(str(error), field=p.field_of(str(error))) from None
    if (problem := sampling.problem()) is not None:
        field, message = problem
        raise InvalidParam(f"{field}: {message}", field=field)
    return sampling


def _check_id(request_id: object) -> None:
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID:
        raise InvalidParam(f"request_id must be a string of 1 to {MAX_ID} characters", field="request_id")
