"""Refuse a request that cannot be served, naming the field and the limit. First without, then with its model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from inferd.front.errors import Refusal, invalid
from inferd_client.protocol import Caps, Code, Generate, Render, Tokenize

if TYPE_CHECKING:
    from inferd.link import ModelCard

PRIORITY = 100
MAX_WAIT_MS = 10**9


def check_generate(message: Generate) -> None:
    """Check what needs no model. Raises Refusal."""
    check_names(message)
    given = [name for name in ("prompt", "prompt_ids", "messages") if getattr(message, name) is not None]
    if len(given) != 1:
        raise invalid(
            "prompt", f"give exactly one of prompt, prompt_ids and messages, got {', '.join(given) or 'none'}"
        )
    if message.messages is not None:
        check_messages(message)
    problem = message.sampling.problem()
    if problem is not None:
        raise invalid(f"sampling.{problem[0]}", problem[1])
    if abs(message.priority) > PRIORITY:
        raise invalid("priority", f"must be within -{PRIORITY} and {PRIORITY}, got {message.priority}", PRIORITY)
    for name in ("deadline_ms", "queue_timeout_ms"):
        value = getattr(message, name)
        if value is not None and not 0 < value <= MAX_WAIT_MS:
            raise invalid(name, f"must be within 1 and {MAX_WAIT_MS}, got {value}", MAX_WAIT_MS)
    check_keep_alive(message.keep_alive_s)


def check_messages(message: Generate | Render) -> None:
    """Check the size and shape of a chat. Raises Refusal."""
    messages = message.messages or []
    if not 0 < len(messages) <= Caps.MESSAGES:
        raise invalid("messages", f"1 to {Caps.MESSAGES} messages, got {len(messages)}", Caps.MESSAGES)
    for i, turn in enumerate(messages):
        for name in ("role", "name", "tool_call_id"):
            if len(getattr(turn, name) or "") > Caps.NAME_CHARS:
                raise invalid(f"messages[{i}].{name}", f"at most {Caps.NAME_CHARS} characters", Caps.NAME_CHARS)
        _check_objects(f"messages[{i}].tool_calls", turn.tool_calls)
    _check_objects("tools", message.tools)
    _check_arguments(message.template_args)


def _check_objects(field: str, objects: list[dict[str, Any]] | None) -> None:
    """Bound a list of free JSON objects in number and depth. Raises Refusal."""
    if objects is None:
        return
    if len(objects) > Caps.TOOLS:
        raise invalid(field, f"at most {Caps.TOOLS} entries, got {len(objects)}", Caps.TOOLS)
    level: list[Any] = list(objects)
    for _ in range(Caps.TOOL_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise invalid(field, f"nested deeper than {Caps.TOOL_DEPTH}", Caps.TOOL_DEPTH)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_arguments(arguments: dict[str, Any]) -> None:
    """Bound the extra names for a template; which ones it takes is checked where it is rendered. Raises Refusal."""
    if len(arguments) > Caps.TEMPLATE_ARGS:
        limit = Caps.TEMPLATE_ARGS
        raise invalid("template_args", f"at most {limit} entries, got {len(arguments)}", limit)
    for name, value in arguments.items():
        if len(name) > Caps.NAME_CHARS:
            raise invalid("template_args", f"names have at most {Caps.NAME_CHARS} characters", Caps.NAME_CHARS)
        if value is not None and not isinstance(value, str | int | float | bool):
            raise invalid(f"template_args.{name}", "must be a string, number, boolean or null")


def check_names(message: Generate | Tokenize | Render) -> None:
    """Check the id and the model name. Raises Refusal."""
    if not 0 < len(message.id) <= Caps.ID_CHARS:
        raise invalid("id", f"1 to {Caps.ID_CHARS} characters, got {len(message.id)}", Caps.ID_CHARS)
    check_model_name(message.model)


def check_keep_alive(seconds: float | None) -> None:
    if seconds is not None and seconds != seconds:
        raise invalid("keep_alive_s", "must be a number")


def check_model_name(name: str) -> None:
    if len(name) > Caps.MODEL_CHARS or "\0" in name:
        raise invalid("model", f"at most {Caps.MODEL_CHARS} characters without NUL", Caps.MODEL_CHARS)


def check_prompt(message: Generate, prompt: list[int], card: ModelCard) -> int:
    """Check what depends on vocabulary and context; return the resolved max_tokens. Raises Refusal."""
    field = "prompt_ids" if message.prompt_ids is not None else "messages" if message.messages else "prompt"
    if not prompt:
        raise invalid(field, "the prompt has no tokens")
    if min(prompt) < 0 or max(prompt) >= card.vocab_size:
        bad = next(i for i in prompt if not 0 <= i < card.vocab_size)
        raise invalid(field, f"token id {bad} is outside the vocabulary of {card.vocab_size}", card.vocab_size)
    sampling = message.sampling
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        bad = next((i for i in getattr(sampling, name) or () if i >= card.vocab_size), None)
        if bad is not None:
            text = f"token id {bad} is outside the vocabulary of {card.vocab_size}"
            raise invalid(f"sampling.{name}", text, card.vocab_size)
    capacity = _capacity(card)
    room = capacity - len(prompt)
    if room < 1 or (sampling.max_tokens or 0) > room:
        wanted = f" and max_tokens {sampling.max_tokens}" if sampling.max_tokens else ""
        raise Refusal(
            Code.CONTEXT_EXCEEDED,
            f"a prompt of {len(prompt)} tokens{wanted} exceeds the context of {card.context}{_pool_note(card)}; "
            + (
                f"max_tokens can be {room} at most"
                if room >= 1
                else f"shorten it by {1 - room} or raise engine.max_context"
            ),
            field="sampling.max_tokens" if room >= 1 else field,
            limit=capacity,
        )
    if sampling.max_tokens is None and sampling.min_tokens > room:
        raise invalid("sampling.min_tokens", f"{sampling.min_tokens} exceeds the {room} tokens of context left", room)
    return sampling.max_tokens or room


def _capacity(card: ModelCard) -> int:
    """Most tokens one sequence can have: the context, or a smaller pool (its last token needs no KV)."""
    blocks, size = card.shape.get("num_blocks"), card.shape.get("block_size")
    return card.context if not blocks or not size else min(card.context, blocks * size + 1)


def _pool_note(card: ModelCard) -> str:
    capacity = _capacity(card)
    return f", of which the KV pool holds {capacity}" if capacity < card.context else ""
