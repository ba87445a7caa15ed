"""From the sampling fields of a request to the options of the client library."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import invalid
from .requests import Sampled

SAME_NAMES = (
    "temperature",
    "top_p",
    "n",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)
MAX_SEED = 2**63 - 1


def sampling_options(body: Sampled, max_tokens: int | None, logprobs: int | None) -> dict[str, Any]:
    """Return keyword options for `generate` and `chat`; the client library checks their ranges."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "only allowed when stream is true")
    options = {name: value for name in SAME_NAMES if (value := getattr(body, name)) is not None}
    if body.seed is not None:
        options["seed"] = body.seed & MAX_SEED
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if logprobs is not None:
        options["logprobs"] = logprobs
    return options | _structured(body)


def _structured(body: Sampled) -> dict[str, Any]:
    wanted = body.structured_outputs
    if wanted is None:
        return {}
    schema = wanted.json
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid("structured_outputs.json", f"is not a JSON object: {error}") from None
    given = {"json_schema": schema, "regex": wanted.regex, "choice": wanted.choice, "grammar": wanted.grammar}
    return {name: value for name, value in given.items() if value is not None}
