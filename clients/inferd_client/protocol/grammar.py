"""What the output must look like: the one place that knows which sampling fields say so, and their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .codes import Caps

if TYPE_CHECKING:
    from .sampling import SamplingParams

GRAMMAR_FIELDS = ("json_schema", "regex", "grammar", "choice")
"""At most one of these fields of `SamplingParams` is set."""


def grammar_problem(sampling: SamplingParams) -> tuple[str, str] | None:
    """Return (field, message) of what is out of bounds; whether a grammar can be used, the daemon says."""
    given = [name for name in GRAMMAR_FIELDS if getattr(sampling, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        return given[1], f"at most one of {', '.join(GRAMMAR_FIELDS)}, got {' and '.join(given)}"
    if sampling.ignore_eos:
        return "ignore_eos", f"cannot go with {given[0]}: an output that is complete ends"
    name = given[0]
    return _choice_problem(sampling.choice) if sampling.choice is not None else _size_problem(sampling, name)


def _choice_problem(choice: tuple[str, ...]) -> tuple[str, str] | None:
    if not 0 < len(choice) <= Caps.CHOICES:
        return "choice", f"1 to {Caps.CHOICES} entries, got {len(choice)}"
    if "" in choice:
        return "choice", "an entry must not be empty"
    size = sum(len(entry.encode(errors="replace")) for entry in choice)
    return _too_large("choice", size)


def _size_problem(sampling: SamplingParams, name: str) -> tuple[str, str] | None:
    value = getattr(sampling, name)
    if isinstance(value, str):
        return (name, "must not be empty") if not value else _too_large(name, len(value.encode(errors="replace")))
    if _deeper_than(value, Caps.GRAMMAR_DEPTH):
        return name, f"is nested more than {Caps.GRAMMAR_DEPTH} levels deep"
    try:
        return _too_large(name, len(msgspec.json.encode(value)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return name, f"is not JSON: {error}"


def _too_large(name: str, size: int) -> tuple[str, str] | None:
    return (name, f"at most {Caps.GRAMMAR_BYTES} bytes, got {size}") if size > Caps.GRAMMAR_BYTES else None


def _deeper_than(value: Any, limit: int) -> bool:
    """Look at one level after the other: the nesting itself may be the attack."""
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [child for child in children if isinstance(child, (dict, list, tuple))]
