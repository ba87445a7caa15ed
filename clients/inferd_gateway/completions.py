"""`POST /v1/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, TypeGuard

from .endpoint import Asked, endpoint
from .errors import invalid, unsupported
from .gateway import Gateway
from .generation import Generation, Part
from .logprobs import CompletionLogprobs
from .requests import CompletionRequest
from .sampling import sampling_options

MAX_TOKENS = 16
"""Where a request says nothing: the default of this endpoint."""
MAX_PROMPTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCompletions(Asked):
    """Prompts on their way."""

    logprobs: list[CompletionLogprobs]

    async def whole(self) -> dict[str, Any]:
        choices = [_choice(i, "") for i in range(self.generation.num_choices)]
        async with self.generation as generation:
            async for part in generation.parts():
                if part is not None:
                    _add(choices[part.choice], self._entry(part))
        return {**self.head, "choices": choices, "usage": self.generation.usage}

    def entries(self, part: Part) -> list[list[dict[str, Any]]]:
        return [[self._entry(part)]]

    def _entry(self, part: Part) -> dict[str, Any]:
        piece = part.piece
        logprobs = None
        if piece.logprobs is not None:
            logprobs = self.logprobs[part.choice].take(piece.logprobs, piece.spelling)
        return {**_choice(part.choice, piece.text), "logprobs": logprobs, "finish_reason": piece.finish}


async def plan(gateway: Gateway, body: CompletionRequest) -> AskedCompletions:
    """Check the request and send its prompts to the daemon. Raises ApiError, InferdError."""
    _check(body)
    prompts = as_prompts(body.prompt)
    limit = MAX_TOKENS if body.max_tokens is None else body.max_tokens
    options = sampling_options(body, limit, body.logprobs)
    model = await gateway.model_name(body.model)
    client = gateway.client
    streams = [client.generate(prompt, stream=True, model=model, **gateway.options, **options) for prompt in prompts]
    generation = Generation(streams, body.n or 1)
    return AskedCompletions(
        generation=generation,
        head={"id": f"cmpl-{streams[0].id}", "object": "text_completion", "created": int(time.time()), "model": model},
        chunk="text_completion",
        wants_usage=body.wants_usage,
        logprobs=[CompletionLogprobs() for _ in range(generation.num_choices)],
    )


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


def _add(choice: dict[str, Any], entry: dict[str, Any]) -> None:
    choice["text"] += entry["text"]
    choice["finish_reason"] = entry["finish_reason"]
    if choice["logprobs"] is None:
        choice["logprobs"] = entry["logprobs"]
    elif entry["logprobs"] is not None:
        for name, values in entry["logprobs"].items():
            choice["logprobs"][name] += values


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


completions = endpoint(CompletionRequest, plan)
