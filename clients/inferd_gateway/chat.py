"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from .answer import Answer, AnswerReader
from .body import read_json
from .chat_checks import check_chat, template_args
from .gateway import Gateway, gateway_of
from .generation import Generation, Part
from .logprobs import chat_logprobs
from .messages import as_messages, as_tools
from .requests import ChatRequest
from .sampling import sampling_options
from .sse import EventStream, comment, event, while_connected
from .thinking import ThinkSplitter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def chat(request: Request) -> Response:
    gateway = gateway_of(request)
    body = await read_json(request, ChatRequest, gateway.settings)
    asked = await plan(gateway, body)
    if body.stream:
        return EventStream(chunks(asked, gateway.settings.keep_alive_s), gateway.settings.send_timeout_s)
    return JSONResponse(await while_connected(request.receive, whole(asked)))


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat on its way."""

    generation: Generation
    readers: list[AnswerReader]
    head: dict[str, Any]
    """What every answer and chunk has."""
    wants_usage: bool


async def plan(gateway: Gateway, body: ChatRequest) -> Asked:
    """Check a chat and send it to the daemon. Raises ApiError, InferdError."""
    check_chat(body)
    messages = as_messages(body.messages)
    tools = as_tools(body.tools) if body.tool_choice != "none" else []
    top = (body.top_logprobs or 0) if body.logprobs else None
    options = sampling_options(body, body.max_completion_tokens or body.max_tokens, top)
    arguments = template_args(body)
    model = await gateway.model_name(body.model)
    spoken = await gateway.templates.tool_format(model) if tools else None
    inside = await gateway.templates.opens_thought(model, arguments)
    if tools:
        options["tools"] = tools
    stream = gateway.client.chat(
        messages, stream=True, model=model, template_args=arguments, **gateway.options, **options
    )
    names = [tool["function"]["name"] for tool in tools]
    generation = Generation([stream], body.n or 1)
    readers = [
        AnswerReader(ThinkSplitter(inside=inside), spoken.format.parser(names) if spoken else None, spoken)
        for _ in range(generation.num_choices)
    ]
    head = {"id": f"chatcmpl-{stream.id}", "object": "chat.completion", "created": int(time.time()), "model": model}
    return Asked(generation, readers, head, body.wants_usage)


async def whole(asked: Asked) -> dict[str, Any]:
    """Return the answer in one piece."""
    answers = [Answer() for _ in asked.readers]
    async with asked.generation as generation:
        async for part in generation.parts():
            if part is not None:
                _add(answers[part.choice], asked.readers[part.choice], part)
    choices = [
        {
            "index": i,
            "message": answer.message,
            "logprobs": None if answer.logprobs is None else {"content": answer.logprobs, "refusal": None},
            "finish_reason": answer.finish,
        }
        for i, answer in enumerate(answers)
    ]
    return {**asked.head, "choices": choices, "usage": asked.generation.usage}


def _add(answer: Answer, reader: AnswerReader, part: Part) -> None:
    piece = part.piece
    for delta in reader.push(piece):
        answer.add(delta)
    if piece.logprobs is not None:
        answer.logprobs = (answer.logprobs or []) + chat_logprobs(piece.logprobs, piece.spelling)
    if piece.finish is not None:
        answer.finish = reader.reason(piece.finish)


async def chunks(asked: Asked, keep_alive_s: float) -> AsyncGenerator[bytes]:
    """Yield the answer as server-sent events."""
    head = {**asked.head, "object": "chat.completion.chunk"}
    usage: dict[str, Any] = {"usage": None} if asked.wants_usage else {}
    begun: set[int] = set()
    async with asked.generation as generation:
        async for part in generation.parts(keep_alive_s):
            if part is None:
                yield comment(generation.state)
                continue
            if part.choice not in begun:
                begun.add(part.choice)
                yield event({**head, "choices": [_choice(part.choice, {"role": "assistant", "content": ""})], **usage})
            for choice in _choices(asked.readers[part.choice], part):
                yield event({**head, "choices": [choice], **usage})
        if asked.wants_usage:
            yield event({**head, "choices": [], "usage": generation.usage})


def _choices(reader: AnswerReader, part: Part) -> list[dict[str, Any]]:
    """Return the entries that a piece adds: its log-probabilities stand with the first of them."""
    piece = part.piece
    choices = [_choice(part.choice, delta) for delta in reader.push(piece)]
    if piece.logprobs:
        choices = choices or [_choice(part.choice, {})]
        choices[0]["logprobs"] = {"content": chat_logprobs(piece.logprobs, piece.spelling), "refusal": None}
    if piece.finish is not None:
        choices.append({**_choice(part.choice, {}), "finish_reason": reader.reason(piece.finish)})
    return choices


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
