"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from .answer import Answer, AnswerReader
from .chat_checks import check_chat, template_args
from .endpoint import Asked, endpoint
from .gateway import Gateway
from .generation import Generation, Part
from .logprobs import chat_logprobs
from .messages import as_messages, as_tools
from .requests import ChatRequest
from .sampling import sampling_options
from .structure import structure_of
from .thinking import ThinkSplitter


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChat(Asked):
    """A chat on its way."""

    readers: list[AnswerReader]
    begun: set[int] = field(default_factory=set)
    """Choices whose first chunk, which names the role, was sent."""

    async def whole(self) -> dict[str, Any]:
        answers = [Answer() for _ in self.readers]
        async with self.generation as generation:
            async for part in generation.parts():
                if part is not None:
                    _add(answers[part.choice], self.readers[part.choice], part)
        choices = [
            {
                "index": i,
                "message": answer.message,
                "logprobs": None if answer.logprobs is None else {"content": answer.logprobs, "refusal": None},
                "finish_reason": answer.finish,
            }
            for i, answer in enumerate(answers)
        ]
        return {**self.head, "choices": choices, "usage": self.generation.usage}

    def entries(self, part: Part) -> list[list[dict[str, Any]]]:
        entries = [[choice] for choice in _choices(self.readers[part.choice], part)]
        if part.choice in self.begun:
            return entries
        self.begun.add(part.choice)
        return [[_choice(part.choice, {"role": "assistant", "content": ""})], *entries]


async def plan(gateway: Gateway, body: ChatRequest) -> AskedChat:
    """Check a chat and send it to the daemon. Raises ApiError, InferdError."""
    check_chat(body)
    messages = as_messages(body.messages)
    tools = as_tools(body.tools) if body.tool_choice != "none" else []
    top = (body.top_logprobs or 0) if body.logprobs else None
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    options = sampling_options(body, limit, top)
    arguments = template_args(body)
    model = await gateway.model_name(body.model)
    spoken = await gateway.templates.tool_format(model) if tools else None
    inside = await gateway.templates.opens_thought(model, arguments)
    options |= structure_of(body, tools, spoken, inside=inside)
    if tools:
        options["tools"] = tools
    stream = gateway.client.chat(
        messages, stream=True, model=model, template_args=arguments, **gateway.options, **options
    )
    names = [tool["function"]["name"] for tool in tools]
    generation = Generation([stream], body.n or 1)
    return AskedChat(
        generation=generation,
        head={"id": f"chatcmpl-{stream.id}", "object": "chat.completion", "created": int(time.time()), "model": model},
        chunk="chat.completion.chunk",
        wants_usage=body.wants_usage,
        readers=[
            AnswerReader(ThinkSplitter(inside=inside), spoken.format.parser(names) if spoken else None, spoken)
            for _ in range(generation.num_choices)
        ],
    )


def _add(answer: Answer, reader: AnswerReader, part: Part) -> None:
    piece = part.piece
    for delta in reader.push(piece):
        answer.add(delta)
    if piece.logprobs is not None:
        answer.logprobs = (answer.logprobs or []) + chat_logprobs(piece.logprobs, piece.spelling)
    if piece.finish is not None:
        answer.finish = reader.reason(piece.finish)


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


chat = endpoint(ChatRequest, plan)
