"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failure"]
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found. A failure keeps inferd, or a model, from working; a warning costs something."""

    level: Level
    topic: str
    text: str
    remedy: str = ""


def ok(topic: str, text: str) -> Finding:
    return Finding("ok", topic, text)


def warning(topic: str, text: str, remedy: str) -> Finding:
    return Finding("warning", topic, text, remedy)


def failure(topic: str, text: str, remedy: str) -> Finding:
    return Finding("failure", topic, text, remedy)


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
