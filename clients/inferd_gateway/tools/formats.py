"""The formats by name: parser, how a prompt shows that its template uses it, and the ids of calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from . import rules
from .base import ToolParser
from .hermes import HermesParser
from .llama3 import Llama3Parser
from .mistral import MARKER, MistralParser


class Rules(Protocol):
    """Lark rules `calls` and `answer` for some tools; see rules.py."""

    def __call__(self, tools: Sequence[dict[str, Any]], marker: int | None, *, parallel: bool) -> list[str]: ...


_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way of writing tool calls."""

    name: str
    parser: Callable[[Collection[str]], ToolParser]
    rules: Rules
    signs: tuple[str, ...]
    """Any of these in a prompt that shows a call."""
    marker: str = ""
    """A special token that the parser needs to see, though it has no text."""
    id_chars: int = 24

    def new_id(self) -> str:
        """Return an id for a call. Mistral's templates take nine characters and nothing else."""
        chars = "".join(secrets.choice(_ALPHANUMERIC) for _ in range(self.id_chars))
        return chars if self.id_chars == 9 else f"call_{chars}"


FORMATS = {
    made.name: made
    for made in (
        ToolFormat("mistral", MistralParser, rules.mistral, (MARKER, "[AVAILABLE_TOOLS]"), marker=MARKER, id_chars=9),
        ToolFormat("hermes", HermesParser, rules.hermes, ("<tool_call>",)),
        ToolFormat(
            "llama3",
            Llama3Parser,
            rules.llama3,
            ("<|python_tag|>", '"parameters": dictionary', '"name": "probe", "parameters"'),
        ),
    )
}


def format_of(prompt: str) -> ToolFormat | None:
    """Return the format that a rendered prompt shows, None where it is another one."""
    if "<function=" in prompt:  # Qwen3-Coder: the tags of Hermes around XML
        return None
    return next((known for known in FORMATS.values() if any(sign in prompt for sign in known.signs)), None)
