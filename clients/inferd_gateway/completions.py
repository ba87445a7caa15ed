"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from starlette.responses import JSONResponse

from .body import read_json
from .errors import invalid, unsupported
from .gateway import Gateway, gateway_of
from .generation import Generation, Part
from .logprobs import CompletionLogprobs
from .requests import CompletionRequest
from .sampling import sampling_options
from .sse import EventStream, comment, event, while_connected

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_TOKENS = 16
"""Where a request says nothing: the default of this endpoint."""
MAX_PROMPTS = 32


async def completions(request: Request) -> Response:
    gateway = gateway_of(request)
    body = await read_json(request, CompletionRequest, gateway.settings)
    asked = await plan(gateway, body)
    if body.stream:
        return EventStream(chunks(asked, gateway.settings.keep_alive_s), gateway.settings.send_timeout_s)
    return JSONResponse(await while_connected(request.receive, whole(asked)))


@dataclass(frozen=True, slots=True)
class Asked:
    """Prompts on their way."""

    generation: Generation
    logprobs: list[CompletionLogprobs]
    head: dict[str, Any]
    wants_usage: bool


async def plan(gateway: Gateway, body: CompletionRequest) -> Asked:
    """Check the request and send its prompts to the daemon. Raises ApiError, InferdError."""
    _check(body)
    prompts = as_prompts(body.prompt)
    limit = MAX_TOKENS if body.max_tokens is None else body.max_tokens
    options = sampling_options(body, limit, body.logprobs)
    model = await gateway.model_name(body.model)
    client = gateway.client
    streams = [client.generate(prompt, stream=True, model=model, **gateway.options, **options) for prompt in prompts]
    generation = Generation(streams, body.n or 1)
    logprobs = [CompletionLogprobs() for _ in range(generation.num_choices)]
    head = {"id": f"cmpl-{streams[0].id}", "object": "text_completion", "created": int(time.time()), "model": model}
    return Asked(generation, logprobs, head, body.wants_usage)


def _check(body: CompletionRequest) -> None:
    if body.echo:
        raise unsupported("echo", "the prompt is not said back")
    if body.suffix:
        raise unsupported("suffix", "insertion is not supported")
    if body.best_of not in (None, 1, body.n):
        raise unsupported("best_of", "only as many as n")


def as_prompts(prompt: Any) -> list[str | list[int]]:
    """Return the prompts of a request: one text, one list of ids, or a list of either. Raises ApiError."""
    if isinstance(prompt, str) or _are_ids(prompt):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise invalid("prompt", "a string, a list of token ids, or a list of either")
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"at most {MAX_PROMPTS} prompts, got {len(prompt)}")
    if not all(isinstance(one, str) or _are_ids(one) for one in prompt):
        raise invalid("prompt", "a string, a list of token ids, or a list of either")
    return prompt


def _are_ids(prompt: Any) -> TypeGuard[list[int]]:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


async def whole(asked: Asked) -> dict[str, Any]:
    """Return the answer in one piece."""
    choices = [_choice(i, "") for i in range(asked.generation.num_choices)]
    async with asked.generation as generation:
        async for part in generation.parts():
            if part is not None:
                _add(choices[part.choice], _entry(asked, part))
    return {**asked.head, "choices": choices, "usage": asked.generation.usage}


def _add(choice: dict[str, Any], entry: dict[str, Any]) -> None:
    choice["text"] += entry["text"]
    choice["finish_reason"] = entry["finish_reason"]
    if choice["logprobs"] is None:
        choice["logprobs"] = entry["logprobs"]
    elif entry["logprobs"] is not None:
        for name, values in entry["logprobs"].items():
            choice["logprobs"][name] += values


async def chunks(asked: Asked, keep_alive_s: float) -> AsyncGenerator[bytes]:
    """Yield the answer as server-sent events."""
    usage: dict[str, Any] = {"usage": None} if asked.wants_usage else {}
    async with asked.generation as generation:
        async for part in generation.parts(keep_alive_s):
            if part is None:
                yield comment(generation.state)
                continue
            yield event({**asked.head, "choices": [_entry(asked, part)], **usage})
        if asked.wants_usage:
            yield event({**asked.head, "choices": [], "usage": generation.usage})


def _entry(asked: Asked, part: Part) -> dict[str, Any]:
    piece = part.piece
    logprobs = None
    if piece.logprobs is not None:
        logprobs = asked.logprobs[part.choice].take(piece.logprobs, piece.spelling)
    return {**_choice(part.choice, piece.text), "logprobs": logprobs, "finish_reason": piece.finish}


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
