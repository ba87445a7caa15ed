"""A compiled chat template: rendered within limits, with errors that name the template's line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple

from jinja2 import TemplateSyntaxError, meta

from inferd.text.errors import TextError
from inferd.text.limits import TimeLimit, cpu_seconds
from inferd.text.sandbox import ChatEnvironment, Refusal


class RenderLimits(NamedTuple):
    chars: int = 8_000_000
    """Longest output."""
    seconds: float = 5.0
    """Processor time of one rendering."""


class ChatTemplate:
    """One template. Raises TextError on a syntax error, naming its line."""

    def __init__(self, source: str, limits: RenderLimits = RenderLimits()) -> None:
        self.source = source
        self._limits = limits
        environment = ChatEnvironment()
        try:
            self._template = environment.from_string(source)
            self._names = meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise TextError(f"chat template line {error.lineno}: {error.message}", "messages") from None
        except (RecursionError, MemoryError, OverflowError) as error:
            raise TextError(f"chat template cannot be compiled: {type(error).__name__}", "messages") from None

    @property
    def knows_tools(self) -> bool:
        """Whether it does anything with a list of tools."""
        return "tools" in self._names

    @cached_property
    def knows_tool_calls(self) -> bool:
        """Whether it can show calls that an answer made, and so expects answers without content."""
        return "tool_calls" in self.source

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the prompt. Raises TextError."""
        try:
            with cpu_seconds(self._limits.seconds):
                return self._collect(variables)
        except Refusal as error:
            raise TextError(f"the chat template refuses the messages: {error.message}", "messages") from None
        except TextError:
            raise
        except TimeLimit as error:
            line = self._template.get_corresponding_lineno(_line(error.__traceback__))
            raise self._fault(line, f"took more than {self._limits.seconds:g} s of processor time") from None
        except (Exception, MemoryError) as error:  # noqa: BLE001 - whatever a template does wrong
            raise self._fault(_line(error.__traceback__), str(error) or type(error).__name__) from None

    @staticmethod
    def _fault(line: int, problem: str) -> TextError:
        return TextError(f"chat template{f' line {line}' if line else ''}: {problem}", "messages")

    def _collect(self, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate(**variables):
            parts.append(part)
            size += len(part)
            if size > self._limits.chars:
                raise TextError(f"the rendered chat exceeds {self._limits.chars} characters", "messages")
        return "".join(parts)


def _line(traceback: TracebackType | None) -> int:
    """Find the innermost line of the template in a traceback; 0 where it has none.

    jinja has made the lines of an Exception those of the source; of others they are of compiled code.
    """
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
